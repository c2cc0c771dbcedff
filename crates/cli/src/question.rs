//! Questions of running cages, as commands name them.

use crate::error::CliError;
use crate::running;
use ironcage_control::QuestionDescription;
use ironcage_model::{CageId, Printable};
use ironcage_runtime::client::{Connection, Found, questions};

/// A question that waits for an answer.
pub(crate) struct Waiting {
    pub(crate) cage: CageId,
    pub(crate) name: Option<String>,
    pub(crate) described: QuestionDescription,
}

impl Waiting {
    /// A connection to who answers for the cage.
    pub(crate) fn connect(&self) -> Result<Connection, CliError> {
        running::cages()?.connect(&self.cage).map_err(running::said)
    }

    /// The cage as people call it.
    pub(crate) fn shown(&self) -> String {
        match &self.name {
            Some(name) => Printable::new(name).to_string(),
            None => self.cage.to_string(),
        }
    }
}

/// Every question that waits, of one cage or of all that run.
pub(crate) fn waiting(cage: Option<&str>) -> Result<Vec<Waiting>, CliError> {
    let cages = running::cages()?;
    let only = cage.map(|text| running::find(&cages, text)).transpose()?;
    let mut all = Vec::new();
    for found in cages.running().map_err(running::said)? {
        let Found::Answered(description) = found else {
            continue;
        };
        if only.as_ref().is_some_and(|only| *only != description.id) {
            continue;
        }
        // One that ends at this moment has no questions.
        let connection = cages.connect(&description.id);
        let Ok(list) = connection.and_then(|connection| questions(&connection)) else {
            continue;
        };
        for described in list {
            all.push(Waiting {
                cage: description.id.clone(),
                name: description.name.clone(),
                described,
            });
        }
    }
    Ok(all)
}

/// The question that a user says yes to, as CAGE/NUMBER: numbers alone are those of another cage as
/// soon as the one whose question was read has ended.
pub(crate) fn find_of_cage(text: &str) -> Result<Waiting, CliError> {
    if text.contains('/') {
        return find(text);
    }
    let shown = Printable::new(text);
    Err(
        CliError::new(format!("`{shown}` does not say whose question it is"))
            .hint("write CAGE/NUMBER, as `ironcage pending` lists it"),
    )
}

/// The question that a user means: CAGE/NUMBER, or the number alone where that is clear.
pub(crate) fn find(text: &str) -> Result<Waiting, CliError> {
    let (cage, number) = match text.rsplit_once('/') {
        Some((cage, number)) => (Some(cage), number),
        None => (None, text),
    };
    let number: u32 = number.parse().map_err(|_| {
        let shown = Printable::new(text);
        CliError::new(format!("`{shown}` is no question"))
            .hint("write its number, or CAGE/NUMBER, as `ironcage pending` lists it")
    })?;
    let mut found = waiting(cage)?;
    found.retain(|one| one.described.question.number == number);
    if found.len() > 1 {
        let cages: Vec<String> = found.iter().map(Waiting::shown).collect();
        return Err(CliError::new(format!(
            "{} cages have a question {number}: {}",
            found.len(),
            cages.join(", ")
        ))
        .hint(format!("write which: CAGE/{number}")));
    }
    found.pop().ok_or_else(|| {
        let shown = Printable::new(text);
        CliError::new(format!("no question `{shown}` waits for an answer"))
            .hint("`ironcage pending` lists those that do")
    })
}
