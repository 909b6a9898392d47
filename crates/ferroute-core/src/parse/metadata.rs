//! Versions and times of objects. Rules do not depend on them.

use std::time::SystemTime;

use ferroute_api::{ObjectMeta, labels};

use crate::rfc3339;

/// Version of an object. Objects from files have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectVersion {
    /// `metadata.resourceVersion`, which increases with every write; `None` if it is absent or not a number.
    pub resource: Option<u64>,
    /// `metadata.generation`, which increases with every change of the spec; API servers do not set it on Services.
    pub generation: Option<i64>,
}

impl ObjectVersion {
    /// Returns the version in an object's metadata.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        let resource = metadata.resource_version.as_ref().and_then(|text| text.parse().ok());
        Self { resource, generation: metadata.generation }
    }
}

/// Returns the time of the event that made a slice change, such as a pod becoming ready, from the annotation
/// [`labels::LAST_CHANGE_TRIGGER_TIME`]. `None` without a valid annotation.
pub fn trigger_time(slice: &ObjectMeta) -> Option<SystemTime> {
    rfc3339::parse(slice.annotations.get(labels::LAST_CHANGE_TRIGGER_TIME)?)
}

/// Returns the time at which the API server last wrote an object, in whole seconds. `None` for objects from files.
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
    fn trigger_times_have_the_format_of_go() {
        assert_eq!(triggered("2026-01-02T15:04:05Z"), Some(Duration::from_secs(1_767_366_245)));
        assert_eq!(triggered("2026-01-02T15:04:05.123456789Z"), Some(Duration::new(1_767_366_245, 123_456_789)));
        assert_eq!(triggered("2026-01-02T16:04:05+01:00"), Some(Duration::from_secs(1_767_366_245)));
    }

    #[test]
    fn invalid_trigger_times_are_ignored() {
        assert_eq!(["", "yesterday", "2026-13-40T00:00:00Z"].map(triggered), [None; 3]);
        assert_eq!(trigger_time(&ObjectMeta::default()), None);
    }

    #[test]
    fn resource_versions_that_are_not_numbers_are_ignored() {
        let version = |text: &str| {
            let resource_version = Some(text.to_owned());
            ObjectVersion::from_metadata(&ObjectMeta { resource_version, generation: Some(3), ..ObjectMeta::default() })
        };
        assert_eq!(version("812"), ObjectVersion { resource: Some(812), generation: Some(3) });
        assert_eq!(version("abc"), ObjectVersion { resource: None, generation: Some(3) });
        assert_eq!(ObjectVersion::from_metadata(&ObjectMeta::default()), ObjectVersion::default());
    }
}
