//! The key chord by which a person leaves a cage that they are attached to: Ctrl-P, Ctrl-Q.

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

/// Looks for the chord in what is typed.
#[derive(Debug, Default)]
pub struct Keys {
    /// A first key that may begin the chord, not yet passed on.
    held: bool,
    left: bool,
}

impl Keys {
    /// Whether the chord was typed.
    pub fn have_left(&self) -> bool {
        self.left
    }

    /// Passes on what is not part of the chord. What is typed after it is not for the cage.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for byte in bytes.iter().copied() {
            if self.left {
                return;
            }
            if self.held && byte == CTRL_Q {
                self.left = true;
                return;
            }
            if self.held {
                out.push(CTRL_P);
            }
            self.held = byte == CTRL_P;
            if !self.held {
                out.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(parts: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut keys = Keys::default();
        let mut out = Vec::new();
        for part in parts {
            keys.feed(part, &mut out);
        }
        (out, keys.have_left())
    }

    #[test]
    fn the_chord_leaves_also_in_two_parts_and_nothing_after_it_is_passed_on() {
        assert_eq!(typed(&[b"ab\x10\x11cd"]), (b"ab".to_vec(), true));
        assert_eq!(typed(&[b"ab\x10", b"\x11cd"]), (b"ab".to_vec(), true));
        assert_eq!(typed(&[b"\x10\x10\x11"]), (b"\x10".to_vec(), true));
    }

    #[test]
    fn half_a_chord_is_passed_on_with_the_next_key() {
        assert_eq!(typed(&[b"\x10", b"x\x11"]), (b"\x10x\x11".to_vec(), false));
        assert_eq!(typed(&[b"\x11"]), (b"\x11".to_vec(), false));
    }
}
