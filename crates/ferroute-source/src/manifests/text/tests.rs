use ferroute_api::manifest::documents;

use super::*;

/// A reader that returns at most 1000 bytes at a time.
struct ShortReads<'b>(&'b [u8]);

impl Read for ShortReads<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let part = buffer.len().min(1000);
        self.0.read(&mut buffer[..part])
    }
}

/// Returns number, line and text of each document.
fn read(bytes: &[u8]) -> Result<Vec<(usize, usize, String)>, TextError> {
    let mut all = Vec::new();
    for_each_part(ShortReads(bytes), CHUNK, &mut |part| {
        all.extend(part.iter().map(|document| (document.number, document.line, document.text.to_owned())));
        Ok(())
    })?;
    Ok(all)
}

#[test]
fn documents_do_not_depend_on_chunks() {
    // Some documents are larger than a chunk, some end where a chunk ends.
    let sizes = [0, 1, 10, CHUNK - 20, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5, 100_000];
    let mut text = "\u{feff}# first\n".to_owned();
    for (i, size) in sizes.into_iter().enumerate() {
        let line = "ü: 1\n";
        let lines = line.repeat(size / line.len());
        text.push_str(&format!("---\n# comment {i}\n{lines}"));
        text.push_str(if i % 3 == 0 { "...\n%YAML 1.1\n" } else { "" });
    }
    for cut in 0..9 {
        let text = &text[..text.len() - cut];
        let whole: Vec<_> = documents(text).map(|d| (d.number, d.line, d.text.to_owned())).collect();
        assert!(read(text.as_bytes()).unwrap() == whole);
    }
}

#[test]
fn markers_at_chunk_boundaries_are_recognized() {
    for marker in ["---\n", "--- \n", "---x\n", "----\n", "...\n---\n"] {
        for shift in 0..8 {
            let text = format!("a: 1\n{}{marker}b: 2\n", "#\n".repeat((CHUNK - shift) / 2));
            let whole: Vec<_> = documents(&text).map(|d| (d.number, d.line, d.text.to_owned())).collect();
            assert!(read(text.as_bytes()).unwrap() == whole, "{marker:?} {shift}");
        }
    }
}

#[test]
fn offset_of_invalid_utf8_counts_from_start_of_file() {
    for good in [0, 10, CHUNK + 10] {
        let mut bytes = "a: 1\n---\n".repeat(good / 9).into_bytes();
        let place = bytes.len() as u64;
        bytes.extend(b"\xffrest\n");
        match read(&bytes) {
            Err(TextError::InvalidUtf8(offset)) => assert_eq!(offset, place),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn empty_file_has_no_documents() {
    assert_eq!(read(b"").unwrap(), []);
}

#[test]
fn endless_documents_are_an_error() {
    for (start, line) in [("", 1), ("---\na: 1\n---\n", 3)] {
        let endless = start.as_bytes().chain(io::repeat(b'x'));
        match for_each_part(endless, CHUNK, &mut |_| Ok(())) {
            Err(TextError::TooLong(found)) => assert_eq!(found, line),
            other => panic!("{other:?}"),
        }
    }
}
