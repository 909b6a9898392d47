use std::fmt;

/// A file format that contains text but must be converted before the text can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Compressed with this program.
    Compressed(&'static str),
    /// An archive of files, of this program.
    Archive(&'static str),
    /// UTF-16, with this name in `iconv`. Redirections of PowerShell write it.
    Utf16(&'static str),
}

impl FileFormat {
    /// Recognizes a format by the first bytes of a file; `None` if the file may be text.
    pub fn of(start: &[u8]) -> Option<Self> {
        Some(match start {
            [0x1f, 0x8b, ..] => Self::Compressed("gzip"),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => Self::Compressed("bzip2"),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Compressed("xz"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Compressed("zstd"),
            [b'P', b'K', 3, 4, ..] => Self::Archive("unzip"),
            // With a byte order mark, iconv recognizes the order itself.
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Self::Utf16("UTF-16"),
            [1..0x80, 0, ..] => Self::Utf16("UTF-16LE"),
            [0, 1..0x80, ..] => Self::Utf16("UTF-16BE"),
            _ if start.get(257..262) == Some(b"ustar") => Self::Archive("tar"),
            _ => return None,
        })
    }
}

impl fmt::Display for FileFormat {
    /// Names the format, and the command that converts it to text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compressed(program) => write!(f, "it is compressed with {program}: use {program} -dc"),
            Self::Archive(program) => write!(f, "it is an archive of files: extract them with {program}"),
            Self::Utf16(name) => write!(f, "it is UTF-16 text: convert it with iconv -f {name} -t UTF-8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_other_format() {
        for text in ["", "a", "apiVersion: v1\n", "\u{feff}a: 1\n", "BZh: 1\n", "PKI: x\n", "ü\n"] {
            assert_eq!(FileFormat::of(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn formats_are_recognized_by_their_first_bytes() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert_eq!(FileFormat::of(&[0x1f, 0x8b, 8]), Some(FileFormat::Compressed("gzip")));
        assert_eq!(FileFormat::of(&utf16("\u{feff}*nat")), Some(FileFormat::Utf16("UTF-16")));
        assert_eq!(FileFormat::of(&utf16("*nat")), Some(FileFormat::Utf16("UTF-16LE")));
        let mut archive = vec![b'x'; 512];
        archive[257..262].copy_from_slice(b"ustar");
        assert_eq!(FileFormat::of(&archive), Some(FileFormat::Archive("tar")));
    }
}
