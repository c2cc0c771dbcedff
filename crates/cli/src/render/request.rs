//! Permission requests as text.

use crate::pending_request::ListedRequest;
use ironcage_model::{Printable, Span, Term};

/// Everything that one answer is for, with who asks and why.
pub(crate) fn entry(one: &ListedRequest) -> String {
    let question = &one.described.question;
    let term = match question.term {
        Term::Milliseconds(time) => format!(" for {}", Span(time)),
        Term::UntilRevoked => String::new(),
    };
    let often = match one.described.asked {
        0 | 1 => String::new(),
        asked => format!(", requested {asked} times"),
    };
    let all = one.all();
    let what = match all.len() {
        1 => question.resource.to_string(),
        several => format!("{several} things for one command"),
    };
    let mut text = format!(
        "{}/{}  {} asks for {what}{term}{often}",
        one.shown(),
        question.answered_as(),
        question.origin.name(),
    );
    let mut line = |more: String| {
        text.push_str("\n    ");
        text.push_str(&more);
    };
    if all.len() > 1 {
        for need in &all {
            line(need.question.resource.to_string());
        }
    }
    if let Some(command) = &question.command {
        line(format!(
            "command given by the agent: {}",
            Printable::new(command)
        ));
    }
    line(match question.reason.as_str() {
        "" => "no reason given".to_owned(),
        reason => format!("reason given by the agent: {}", Printable::new(reason)),
    });
    for named in all
        .iter()
        .filter_map(|need| need.question.announced.as_ref())
    {
        line(format!("the model announced it: {}", Printable::new(named)));
    }
    let minutes = one.described.milliseconds_left.div_ceil(60_000);
    line(format!(
        "{} (expires in {minutes} min)",
        Printable::new(&question.because)
    ));
    if let Some(why) = &one.described.untold {
        line(Printable::new(why).to_string());
    }
    text
}

/// The other needs of the same command, which the same answer was for.
pub(crate) fn answered_together(one: &ListedRequest) -> String {
    let others = one.others.iter();
    let named = others.map(|other| other.question.resource.to_string());
    let named: Vec<String> = named.collect();
    format!(
        "answered with it, for the same command: {}",
        named.join(", ")
    )
}
