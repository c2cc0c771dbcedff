//! An initramfs: an archive in the format `newc`, as the kernel unpacks it.

/// An archive that is being written.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const REGULAR: u32 = 0o100_000;

impl Archive {
    pub(super) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, [0, 0], &[]);
    }

    pub(super) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, REGULAR | mode, [0, 0], content);
    }

    /// A character device, by its major and minor number.
    pub(super) fn device(&mut self, name: &str, number: [u32; 2]) {
        self.entry(name, CHARACTER | 0o666, number, &[]);
    }

    /// The archive with its end.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, [0, 0], &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: [u32; 2], content: &[u8]) {
        self.entries += 1;
        // Number, mode, user, group, links, time, size, device and special device (two numbers
        // each), length of the name with its end, checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            device[0],
            device[1],
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_aligned_entries_and_an_end() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.file("init", 0o755, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(at.len(), 3);
        assert!(at.iter().all(|at| at % 4 == 0));
        assert!(text.contains("init\0") && text.contains("12345") && text.contains("TRAILER!!!\0"));
    }
}
