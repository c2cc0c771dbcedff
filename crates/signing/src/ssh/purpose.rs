//! The purpose of an SSH signature, read from the data to be signed.

use crate::wire::Fields;

/// The message of a login that is signed.
const USERAUTH_REQUEST: u8 = 50;
/// How every other SSH signature begins. A login begins with the length of its session's id: one
/// that begins so would be longer than a gigabyte.
const MAGIC: &[u8] = b"SSHSIG";
/// Longest name of a user.
const LONGEST_USER: usize = 64;

/// A login by a public key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Login<'a> {
    /// The session that it is for.
    pub(super) session: &'a [u8],
    pub(super) user: &'a str,
    pub(super) key: &'a [u8],
    /// The server's key, where the login names it.
    pub(super) host_key: Option<&'a [u8]>,
}

/// Data to be signed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SignedData<'a> {
    Login(Login<'a>),
    /// A signature over a file, in a namespace that says what for.
    Signature {
        namespace: &'a str,
    },
}

impl<'a> SignedData<'a> {
    /// What it is; `None` where it is neither, or has anything that is not understood.
    pub(super) fn of(data: &'a [u8]) -> Option<Self> {
        match data.strip_prefix(MAGIC) {
            Some(rest) => signature(Fields(rest)),
            None => login(Fields(data)).map(SignedData::Login),
        }
    }
}

fn signature(mut fields: Fields<'_>) -> Option<SignedData<'_>> {
    let namespace = fields.text()?;
    let reserved = fields.string()?;
    let length = match fields.string()? {
        b"sha256" => 32,
        b"sha512" => 64,
        _ => return None,
    };
    let hash = fields.string()?;
    fields.end()?;
    let known = reserved.is_empty() && hash.len() == length && !namespace.is_empty();
    known.then_some(SignedData::Signature { namespace })
}

fn login(mut fields: Fields<'_>) -> Option<Login<'_>> {
    let session = fields.string()?;
    if fields.byte()? != USERAUTH_REQUEST {
        return None;
    }
    let user = fields.text()?;
    if fields.string()? != b"ssh-connection" {
        return None;
    }
    let bound = match fields.string()? {
        b"publickey" => false,
        b"publickey-hostbound-v00@openssh.com" => true,
        _ => return None,
    };
    // Whether there is a signature: this is what it is over.
    if fields.byte()? != 1 {
        return None;
    }
    let _algorithm = fields.text()?;
    let key = fields.string()?;
    let host_key = match bound {
        true => Some(fields.string()?),
        false => None,
    };
    fields.end()?;
    let plain = !user.is_empty() && user.len() <= LONGEST_USER && !user.contains(char::is_control);
    plain.then_some(Login {
        session,
        user,
        key,
        host_key,
    })
}
