//! Texts that are put together from values, and small ranges of numbers.

use crate::value::{Piece, Value};
use std::rc::Rc;

/// `"%s" % values`.
pub(super) fn percent(format: &Value, values: &[Value]) -> Value {
    let mut made = Vec::new();
    for format in format.each() {
        let Some(piece) = format.piece() else {
            return Value::Unknown;
        };
        let mut whole = Value::text("");
        let mut values = values.iter();
        let mut rest = piece.text.as_str();
        while let Some((before, after)) = rest.split_once('%') {
            whole = whole.join(&Value::text(before), Piece::then);
            let end = after
                .find(|char: char| char.is_ascii_alphabetic() || char == '%')
                .unwrap_or(0);
            let kind = after.get(end..).and_then(|text| text.chars().next());
            whole = match (kind, end) {
                (Some('%'), 0) => whole.join(&Value::text("%"), Piece::then),
                (Some('s'), 0) => {
                    let value = values.next().cloned().unwrap_or(Value::Unknown);
                    whole.join(&value, Piece::then)
                }
                (Some('d' | 'i'), end) => {
                    let width = after.get(..end).unwrap_or_default();
                    let value = values.next().cloned().unwrap_or(Value::Unknown);
                    whole.join(&number(width, &value), Piece::then)
                }
                _ => {
                    values.next();
                    whole.join(&Value::Unknown, Piece::then)
                }
            };
            rest = kind.map_or("", |kind| {
                after.get(end + kind.len_utf8()..).unwrap_or_default()
            });
        }
        made.push(whole.join(&Value::text(rest), Piece::then));
    }
    Value::choice(made)
}

/// A number in a width: `03`. What is not plainly a number is not known.
fn number(width: &str, value: &Value) -> Value {
    let numbers = value.each().into_iter().map(|value| {
        let number = value.known().and_then(|text| text.parse::<i64>().ok());
        match (number, width.parse::<usize>()) {
            (Some(number), _) if width.is_empty() => Value::text(number.to_string()),
            (Some(number), Ok(count)) if count <= 32 && width.starts_with('0') => {
                Value::text(format!("{number:0count$}"))
            }
            (Some(number), Ok(count)) if count <= 32 => Value::text(format!("{number:count$}")),
            _ => Value::Text(Piece::begins("")),
        }
    });
    Value::choice(numbers.collect())
}

/// The numbers of a range, where they are few.
pub(super) fn range(arguments: &[Value]) -> Option<Value> {
    let number = |at: usize| {
        let value = arguments.get(at)?;
        value.known()?.parse::<i64>().ok()
    };
    let (from, to) = match arguments.len() {
        1 => (0, number(0)?),
        2 => (number(0)?, number(1)?),
        _ => return None,
    };
    let few = to
        .checked_sub(from)
        .is_some_and(|count| (1..=20).contains(&count));
    few.then(|| {
        Value::List(Rc::new(
            (from..to).map(|at| Value::text(at.to_string())).collect(),
        ))
    })
}

/// `"{} {name}".format(...)`.
pub(super) fn format(piece: &Piece, arguments: &[Value], named: &[(String, Value)]) -> Value {
    let mut whole = Value::text("");
    let mut next = 0_usize;
    let mut rest = piece.text.as_str();
    while let Some((before, after)) = rest.split_once('{') {
        whole = whole.join(&Value::text(before), Piece::then);
        let Some((field, after)) = after.split_once('}') else {
            break;
        };
        let name = field.split([':', '!', '.', '[']).next().unwrap_or_default();
        let value = match name.parse::<usize>() {
            Ok(index) => arguments.get(index).cloned(),
            Err(_) if name.is_empty() => {
                next += 1;
                arguments.get(next - 1).cloned()
            }
            Err(_) => named
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone()),
        };
        let plain = name.len() == field.len();
        let value = value.filter(|_| plain).unwrap_or(Value::Unknown);
        whole = whole.join(&value, Piece::then);
        rest = after;
    }
    whole.join(&Value::text(rest), Piece::then)
}
