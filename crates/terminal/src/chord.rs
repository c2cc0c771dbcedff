//! The key by which a person calls the supervisor's prompt. It is looked for only while a question
//! waits: else it is the agent's, like every other key.

/// A key with Ctrl, and the ways in which terminals say it.
#[derive(Debug)]
pub struct Chord {
    forms: Vec<Vec<u8>>,
    armed: bool,
    pressed: bool,
}

impl Chord {
    /// That of a control character: 0x1e is Ctrl-^.
    pub fn new(control: u8) -> Self {
        let plain = char::from((control & 0x1f) | 0x40).to_ascii_lowercase();
        let mut names = vec![u32::from(plain)];
        if plain == '^' {
            // The key that has it on most keyboards.
            names.push(u32::from('6'));
        }
        let mut forms = vec![vec![control]];
        for name in names {
            // Agents turn protocols on in which keys are spelt out: kitty's, and xterm's.
            for modifiers in [5, 6] {
                forms.push(format!("\x1b[{name};{modifiers}u").into_bytes());
                forms.push(format!("\x1b[27;{modifiers};{name}~").into_bytes());
            }
        }
        Chord {
            forms,
            armed: false,
            pressed: false,
        }
    }

    /// Whether it is looked for.
    pub fn arm(&mut self, armed: bool) {
        self.armed = armed;
    }

    /// Whether it was pressed since this was last asked.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.pressed)
    }

    /// Passes on what comes before it. What comes with it is for nobody: it may have been pasted.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.pressed {
            return;
        }
        let at = |form: &Vec<u8>| bytes.windows(form.len()).position(|part| part == form);
        let found = self.forms.iter().filter_map(at).min();
        match found.filter(|_| self.armed) {
            None => out.extend_from_slice(bytes),
            Some(at) => {
                out.extend_from_slice(bytes.get(..at).unwrap_or_default());
                self.pressed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(armed: bool, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut chord = Chord::new(0x1e);
        chord.arm(armed);
        let mut out = Vec::new();
        chord.feed(bytes, &mut out);
        (out, chord.take())
    }

    #[test]
    fn it_is_swallowed_with_what_comes_with_it_and_only_while_it_is_looked_for() {
        assert_eq!(typed(true, b"ab\x1ea\r"), (b"ab".to_vec(), true));
        assert_eq!(typed(false, b"ab\x1ea\r"), (b"ab\x1ea\r".to_vec(), false));
        assert_eq!(typed(true, b"abc"), (b"abc".to_vec(), false));
    }

    #[test]
    fn it_is_known_in_every_way_that_terminals_say_it() {
        for form in [
            "\x1b[54;5u",
            "\x1b[94;5u",
            "\x1b[54;6u",
            "\x1b[27;5;94~",
            "\x1b[27;6;54~",
        ] {
            assert_eq!(typed(true, form.as_bytes()), (Vec::new(), true), "{form:?}");
        }
        let mut letter = Chord::new(0x07);
        letter.arm(true);
        let mut out = Vec::new();
        letter.feed(b"\x1b[103;5u", &mut out);
        assert!(letter.take() && out.is_empty());
    }
}
