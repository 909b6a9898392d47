//! What metadata tells about an object's history; no rule depends on it.

use std::time::SystemTime;

use ferroute_api::{ObjectMeta, labels};

use crate::rfc3339;

/// Which version of an object it is. Objects in files have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectVersion {
    /// `metadata.resourceVersion`, which grows with every write; `None` also where it is no number.
    pub resource: Option<u64>,
    /// `metadata.generation`, which grows with every change of what is asked for; API servers leave it out of Services.
    pub generation: Option<i64>,
}

impl ObjectVersion {
    /// What an object's metadata says.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let resource = metadata.resource_version.as_ref().and_then(|text| text.parse().ok());
        Self { resource, generation: metadata.generation }
    }
}

/// When that happened which made a slice change, as the annotation [`labels::LAST_CHANGE_TRIGGER_TIME`] says: a pod
/// became ready, say. `None` where there is none, or one that is no time.
pub fn trigger_time(slice: &ObjectMeta) -> Option<SystemTime> {
    rfc3339::parse(slice.annotations.get(labels::LAST_CHANGE_TRIGGER_TIME)?)
}

/// When the API server last wrote an object, cut to whole seconds. `None` where it does not tell, as in files.
pub fn write_time(metadata: &ObjectMeta) -> Option<SystemTime> {
    rfc3339::parse(metadata.written.as_ref()?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn triggered(text: &str) -> Option<Duration> {
        let annotations = [(labels::LAST_CHANGE_TRIGGER_TIME.to_owned(), text.to_owned())].into();
        let time = trigger_time(&ObjectMeta { annotations, ..ObjectMeta::default() })?;
        time.duration_since(SystemTime::UNIX_EPOCH).ok()
    }

    #[test]
    fn trigger_times_are_read_as_go_writes_them() {
        assert_eq!(triggered("2026-01-02T15:04:05Z"), Some(Duration::from_secs(1_767_366_245)));
        assert_eq!(triggered("2026-01-02T15:04:05.123456789Z"), Some(Duration::new(1_767_366_245, 123_456_789)));
        assert_eq!(triggered("2026-01-02T16:04:05+01:00"), Some(Duration::from_secs(1_767_366_245)));
    }

    #[test]
    fn what_is_no_time_is_passed_over() {
        assert_eq!(["", "yesterday", "2026-13-40T00:00:00Z"].map(triggered), [None; 3]);
        assert_eq!(trigger_time(&ObjectMeta::default()), None);
    }

    #[test]
    fn versions_are_numbers_or_unknown() {
        let version = |text: &str| {
            let resource_version = Some(text.to_owned());
            ObjectVersion::of(&ObjectMeta { resource_version, generation: Some(3), ..ObjectMeta::default() })
        };
        assert_eq!(version("812"), ObjectVersion { resource: Some(812), generation: Some(3) });
        assert_eq!(version("abc"), ObjectVersion { resource: None, generation: Some(3) });
        assert_eq!(ObjectVersion::of(&ObjectMeta::default()), ObjectVersion::default());
    }
}
