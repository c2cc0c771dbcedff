//! Texts that the grammar cannot parse, in a form of the same length that it can: so what the tree
//! says of places holds for the text as it is.

use std::ops::Range;

/// Here-documents that are looked for.
const MOST: usize = 64;

/// Text that the grammar does not know, in a form of the same length that means the same here:
/// `${v:$i:1}` and `$((8#$m))`. `None` if there is none.
pub(super) fn without_gaps(text: &str) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    let mut changed = false;
    let mut inside = 0_usize;
    for at in 0..bytes.len() {
        let byte = |at: usize| text.as_bytes().get(at).copied().unwrap_or_default();
        match byte(at) {
            b'{' if at > 0 && byte(at - 1) == b'$' => inside += 1,
            b'}' => inside = inside.saturating_sub(1),
            b'$' if inside > 0
                && byte(at.wrapping_sub(1)) == b':'
                && byte(at + 1).is_ascii_alphabetic() =>
            {
                if let Some(dollar) = bytes.get_mut(at) {
                    *dollar = b' ';
                    changed = true;
                }
            }
            b'#' if byte(at + 1) == b'$' && byte(at.wrapping_sub(1)).is_ascii_digit() => {
                if let Some(hash) = bytes.get_mut(at) {
                    *hash = b'+';
                    changed = true;
                }
            }
            _ => {}
        }
    }
    String::from_utf8(bytes).ok().filter(|_| changed)
}

/// The text with plain letters in place of its quoted here-documents, in which the shell expands
/// nothing, and where these lie. Whoever parses it checks that the tree has documents there: the
/// same marks can stand in a comment or in a string.
pub(super) fn without_documents(text: &str) -> Option<(String, Vec<Range<usize>>)> {
    let mut bytes = text.as_bytes().to_vec();
    let mut documents: Vec<Range<usize>> = Vec::new();
    let mut waiting: Vec<(String, bool)> = Vec::new();
    let mut body: Option<usize> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, plain) = (at, line.trim_end_matches('\n'));
        at += line.len();
        let Some((name, tabs)) = waiting.first() else {
            waiting = openings(plain);
            body = (!waiting.is_empty()).then_some(at);
            continue;
        };
        let ends = match tabs {
            true => plain.trim_start_matches('\t') == name,
            false => plain == name,
        };
        if ends {
            let from = body.unwrap_or(start);
            if from < start && documents.len() < MOST {
                documents.push(from..start);
            }
            waiting.remove(0);
            body = Some(at);
        }
    }
    for document in &documents {
        for byte in bytes.get_mut(document.clone())? {
            if *byte != b'\n' {
                *byte = b'x';
            }
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (!documents.is_empty()).then_some((text, documents))
}

/// The here-documents that a line opens: their ends, and whether tabs stand before these. Empty if
/// one of them is not quoted.
fn openings(line: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("<<") {
        rest = after;
        if let Some(string) = after.strip_prefix('<') {
            rest = string;
            continue;
        }
        if before.ends_with("((") {
            continue;
        }
        let (tabs, name) = match after.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, after),
        };
        let name = name.trim_start_matches(' ');
        let quoted = ['\'', '"'].into_iter().find_map(|quote| {
            let (name, _) = name.strip_prefix(quote)?.split_once(quote)?;
            Some(name)
        });
        match quoted.filter(|name| !name.is_empty()) {
            Some(name) => found.push((name.to_owned(), tabs)),
            None => return Vec::new(),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_documents_become_letters_of_the_same_length() {
        let text = "cat <<'A' > x; tee y <<-\"B\"\n\\d(é\nA\n\tq'\n\tB\necho z\n";
        let (plain, documents) = without_documents(text).expect("there are documents");
        assert_eq!(plain.len(), text.len());
        assert_eq!(documents.len(), 2);
        assert!(plain.contains("xxxxx\nA\nxxx\n\tB\necho z\n"), "{plain}");
    }

    #[test]
    fn others_stay() {
        for text in [
            "cat <<A\n$x\nA\n",
            "cat <<<'A'\nx\nA\n",
            "echo $((1 <<'2'))\n",
        ] {
            assert_eq!(without_documents(text), None, "{text}");
        }
    }
}
