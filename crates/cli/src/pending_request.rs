//! Permission requests of running cages, as commands name them.

use crate::cages;
use crate::error::CliError;
use ironcage_client::{Connection, RunningCage, questions};
use ironcage_control::PermissionRequestDescription;
use ironcage_model::{CageId, Printable};

/// A permission request that waits for an answer.
pub(crate) struct ListedRequest {
    pub(crate) cage: CageId,
    pub(crate) name: Option<String>,
    pub(crate) described: PermissionRequestDescription,
    /// The other requests of the same command, which the same answer is for.
    pub(crate) others: Vec<PermissionRequestDescription>,
}

impl ListedRequest {
    /// Everything that one answer is for, in the order of the numbers.
    pub(crate) fn all(&self) -> Vec<&PermissionRequestDescription> {
        let mut all: Vec<_> = self.others.iter().chain([&self.described]).collect();
        all.sort_by_key(|one| one.question.number);
        all
    }

    pub(crate) fn connect(&self) -> Result<Connection, CliError> {
        cages::all()?
            .connect(&self.cage)
            .map_err(cages::client_error)
    }

    /// The cage's name, or its ID if it has none.
    pub(crate) fn shown(&self) -> String {
        match &self.name {
            Some(name) => Printable::new(name).to_string(),
            None => self.cage.to_string(),
        }
    }
}

/// Every pending request, of one cage or of all that run.
pub(crate) fn list(cage: Option<&str>) -> Result<Vec<ListedRequest>, CliError> {
    let cages = cages::all()?;
    let only = cage.map(|text| cages::find(&cages, text)).transpose()?;
    let mut all = Vec::new();
    for found in cages.running().map_err(cages::client_error)? {
        let RunningCage::Answered(description) = found else {
            continue;
        };
        if only.as_ref().is_some_and(|only| *only != description.id) {
            continue;
        }
        // A cage that ends at this moment has no requests.
        let connection = cages.connect(&description.id);
        let Ok(list) = connection.and_then(|connection| questions(&connection)) else {
            continue;
        };
        for described in list.iter().cloned() {
            let number = described.question.number;
            let answered_as = described.question.answered_as();
            let others = list.iter().filter(|one| {
                one.question.answered_as() == answered_as && one.question.number != number
            });
            all.push(ListedRequest {
                others: others.cloned().collect(),
                cage: description.id.clone(),
                name: description.name.clone(),
                described,
            });
        }
    }
    Ok(all)
}

/// The request to approve, as CAGE/NUMBER. A number alone would name another cage's request as
/// soon as the cage whose request was read has ended.
pub(crate) fn find_of_cage(text: &str) -> Result<ListedRequest, CliError> {
    if text.contains('/') {
        return find(text);
    }
    let shown = Printable::new(text);
    Err(
        CliError::new(format!("cannot approve `{shown}`: it does not name a cage"))
            .hint("write CAGE/NUMBER, as `ironcage request list` shows it"),
    )
}

/// The request that an argument names: CAGE/NUMBER, or the number alone if it is unique.
pub(crate) fn find(text: &str) -> Result<ListedRequest, CliError> {
    let (cage, number) = match text.rsplit_once('/') {
        Some((cage, number)) => (Some(cage), number),
        None => (None, text),
    };
    let number: u32 = number.parse().map_err(|_| {
        let shown = Printable::new(text);
        CliError::new(format!("invalid request `{shown}`: expected CAGE/NUMBER"))
            .hint("`ironcage request list` lists pending requests")
    })?;
    let mut found = list(cage)?;
    found.retain(|one| one.described.question.number == number);
    if found.len() > 1 {
        let cages: Vec<String> = found.iter().map(ListedRequest::shown).collect();
        return Err(CliError::new(format!(
            "{} cages have a request {number}: {}",
            found.len(),
            cages.join(", ")
        ))
        .hint(format!("write CAGE/{number}")));
    }
    found.pop().ok_or_else(|| {
        let shown = Printable::new(text);
        CliError::new(format!("no pending request `{shown}`"))
            .hint("`ironcage request list` lists pending requests")
    })
}
