//! An error with all that it came from.

use std::error::Error;

/// An error and its sources, on one line. What a message says already is not said again.
pub fn in_full(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = inner.source();
    }
    message
}
