//! Scripts of sed and awk: whether they are of the kind that only edits and prints.
//!
//! Both languages can write files and execute commands. Anything that is not plainly harmless is
//! unknown.

/// Whether a script of sed has nothing but substitutions, deletions, prints and the like.
pub(super) fn sed_only_edits(script: &str) -> bool {
    let mut rest = script.trim_start();
    if rest.is_empty() {
        return true;
    }
    loop {
        let Some(after) = sed_command(rest) else {
            return false;
        };
        rest = after.trim_start();
        match rest.strip_prefix([';', '\n', '}']) {
            Some(next) => rest = next.trim_start_matches([' ', ';', '\n', '}']),
            None if rest.is_empty() => return true,
            None => return false,
        }
        if rest.is_empty() {
            return true;
        }
    }
}

/// One command, if it is harmless. Returns what follows.
fn sed_command(text: &str) -> Option<&str> {
    let mut rest = sed_address(text)?;
    if let Some(after) = rest.strip_prefix(',') {
        rest = sed_address(after.trim_start_matches([' ', '+', '~']))?;
    }
    rest = rest.trim_start_matches([' ', '!', '{']);
    let mut chars = rest.chars();
    match chars.next()? {
        'd' | 'p' | 'q' | 'D' | 'P' | 'n' | 'N' | 'g' | 'G' | 'h' | 'H' | 'x' | '=' | 'l' => {
            Some(chars.as_str())
        }
        's' => {
            let delimiter = chars.next()?;
            let rest = until(until(chars.as_str(), delimiter)?, delimiter)?;
            // Not `w`, which writes, nor `e`, which executes.
            Some(
                rest.trim_start_matches(|char: char| {
                    "gpiIMm".contains(char) || char.is_ascii_digit()
                }),
            )
        }
        'y' => {
            let delimiter = chars.next()?;
            until(until(chars.as_str(), delimiter)?, delimiter)
        }
        // Text up to the end of the script.
        'a' | 'i' | 'c' => Some(""),
        _ => None,
    }
}

fn sed_address(text: &str) -> Option<&str> {
    match text.chars().next() {
        Some('/') => until(text.get(1..)?, '/').map(|rest| rest.trim_start_matches(['I', 'M'])),
        Some('\\') => None,
        Some(char) if char.is_ascii_digit() || char == '$' => {
            Some(text.trim_start_matches(|char: char| char.is_ascii_digit() || char == '$'))
        }
        _ => Some(text),
    }
}

/// What follows the next delimiter that is not escaped.
fn until(text: &str, delimiter: char) -> Option<&str> {
    let mut escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            char if char == delimiter => return text.get(at + char.len_utf8()..),
            _ => {}
        }
    }
    None
}

/// Whether a program of awk has none of what writes, reads or executes something else.
pub(super) fn awk_only_prints(program: &str) -> bool {
    !program.contains(['>', '|', '@'])
        && !program.contains("system")
        && !program.contains("getline")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_edits_are_harmless() {
        for script in [
            "s/a/b/",
            "s/a/b/g",
            "s|/x|/y|gI",
            "1,10p",
            "/foo/d",
            "$d",
            "/a/,/b/s/x/y/2",
            "s/a\\/w/b/;s/c/d/",
            "5q",
            "y/ab/cd/",
            "2i text; w x",
            "/a/{s/x/y/;p}",
            "1!G;h;$!d",
        ] {
            assert!(sed_only_edits(script), "{script}");
        }
    }

    #[test]
    fn writing_and_executing_are_not() {
        for script in [
            "w out",
            "s/a/b/w out",
            "s/a/b/e",
            "1e id",
            "r file",
            "s/a/b/;w x",
            "/x/w y",
            "s/a/b",
            "{w x\n}",
            "b;w x",
        ] {
            assert!(!sed_only_edits(script), "{script}");
        }
        assert!(awk_only_prints("{print $1}"));
        assert!(!awk_only_prints("{print > \"f\"}"));
        assert!(!awk_only_prints("BEGIN{system(\"id\")}"));
    }
}
