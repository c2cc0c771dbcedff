//! The user that an image or a flag names: `NAME|UID[:GROUP|GID]`, by the image's own lists.

/// The highest ID inside. A cage has a range of 65,536, whose last one no program takes for a user.
const MAX_ID: u32 = 65_534;

/// A user of an image, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUser {
    /// Its name in the list of users, if it has one there.
    pub name: Option<String>,
    pub uid: u32,
    pub gid: u32,
}

/// Why a user cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("expected NAME or UID, with :GROUP or :GID")]
    Invalid,
    #[error("/etc/passwd has no user of that name")]
    NoUser,
    #[error("/etc/group has no group of that name")]
    NoGroup,
    #[error("expected IDs up to {MAX_ID}")]
    TooHigh,
}

/// What a field of a user or group says.
enum NameOrId<'s> {
    Name(&'s str),
    Id(u32),
}

fn name_or_id(text: &str) -> Result<NameOrId<'_>, UserError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        let id = text.parse().map_err(|_| UserError::TooHigh)?;
        return checked(id).map(NameOrId::Id);
    }
    let invalid = |character: char| character.is_control() || matches!(character, ':' | '/' | ' ');
    match text.is_empty() || text.contains(invalid) {
        true => Err(UserError::Invalid),
        false => Ok(NameOrId::Name(text)),
    }
}

fn checked(id: u32) -> Result<u32, UserError> {
    match id <= MAX_ID {
        true => Ok(id),
        false => Err(UserError::TooHigh),
    }
}

/// The first line whose field has this value.
fn line<'l>(list: &'l str, field: usize, value: &str) -> Option<Vec<&'l str>> {
    let mut lines = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    lines.find(|fields| fields.get(field).is_some_and(|found| *found == value))
}

fn number(fields: &[&str], field: usize) -> Option<u32> {
    fields.get(field)?.parse().ok()
}

impl ImageUser {
    /// Finds a user in the lists of an image. A user without a group has the group of its line; a
    /// number without a line has group 0, as in Docker.
    ///
    /// # Errors
    /// If the text is not a user, or the lists do not have it.
    pub fn find(text: &str, passwd: &str, group: &str) -> Result<Self, UserError> {
        let (user, wanted_group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let found = match name_or_id(user)? {
            NameOrId::Name(name) => Some(line(passwd, 0, name).ok_or(UserError::NoUser)?),
            NameOrId::Id(uid) => line(passwd, 2, &uid.to_string()),
        };
        let uid = match (name_or_id(user)?, &found) {
            (NameOrId::Id(uid), _) => uid,
            (_, Some(fields)) => checked(number(fields, 2).ok_or(UserError::NoUser)?)?,
            (_, None) => return Err(UserError::NoUser),
        };
        let gid = match wanted_group.map(name_or_id).transpose()? {
            Some(NameOrId::Id(gid)) => gid,
            Some(NameOrId::Name(name)) => {
                let fields = line(group, 0, name).ok_or(UserError::NoGroup)?;
                checked(number(&fields, 2).ok_or(UserError::NoGroup)?)?
            }
            None => {
                let own = found.as_ref().and_then(|fields| number(fields, 3));
                checked(own.unwrap_or(0))?
            }
        };
        let name = found.as_ref().and_then(|fields| fields.first().copied());
        let name = name.filter(|name| matches!(name_or_id(name), Ok(NameOrId::Name(_))));
        Ok(ImageUser {
            name: name.map(str::to_owned),
            uid,
            gid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\nhigh:x:4294967295:1::/:\nbad:x:no:no::/:\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:web\n";

    fn found(text: &str) -> Result<(Option<String>, u32, u32), UserError> {
        let user = ImageUser::find(text, PASSWD, GROUP)?;
        Ok((user.name, user.uid, user.gid))
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let web = || Some("web".to_owned());
        for (text, expected) in [
            ("web", (web(), 33, 34)),
            ("33", (web(), 33, 34)),
            ("web:staff", (web(), 33, 50)),
            ("web:7", (web(), 33, 7)),
            ("1001", (None, 1001, 0)),
            ("1001:50", (None, 1001, 50)),
            ("root", (Some("root".to_owned()), 0, 0)),
            ("65534", (None, 65_534, 0)),
        ] {
            assert_eq!(found(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_user_that_is_not_there_or_cannot_be_is_refused() {
        for (text, why) in [
            ("nobody", UserError::NoUser),
            ("web:nobody", UserError::NoGroup),
            ("bad", UserError::NoUser),
            ("high", UserError::TooHigh),
            ("65535", UserError::TooHigh),
            ("99999999999", UserError::TooHigh),
            ("", UserError::Invalid),
            (":", UserError::Invalid),
            ("web:", UserError::Invalid),
            ("web:staff:x", UserError::Invalid),
            ("../web", UserError::Invalid),
            ("web\x1b[2J", UserError::Invalid),
        ] {
            assert_eq!(found(text), Err(why), "{text:?}");
        }
    }
}
