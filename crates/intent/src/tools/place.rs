//! Places that words name: paths of the table, URLs, hosts, remotes, packages.

use crate::needs::{Destination, Unsure, tidy};
use crate::shell::Word;
use crate::shell::walk::Walk;
use std::path::Path;

/// The ports of the schemes that tools take.
const PORTS: &[(&str, u16)] = &[
    ("http", 80),
    ("https", 443),
    ("ws", 80),
    ("wss", 443),
    ("ftp", 21),
    ("ftps", 990),
    ("sftp", 22),
    ("ssh", 22),
    ("git", 9418),
    ("rsync", 873),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("mysql", 3306),
    ("mongodb", 27017),
    ("redis", 6379),
    ("rediss", 6379),
    ("amqp", 5672),
    ("ldap", 389),
    ("smb", 445),
];

/// A URL taken apart, as far as it is needed.
enum Address<'t> {
    Host { name: &'t str, port: Option<u16> },
    File(&'t str),
}

impl Walk<'_, '_> {
    /// A path of the table: from where the tool works, or from the home.
    pub(super) fn place(&mut self, path: &str, note: fn(&mut Self, &Word)) {
        match path.strip_prefix('~') {
            None => note(self, &Word::Plain(path.to_owned())),
            Some(rest) => {
                if let Some(home) = self.scope.home.clone() {
                    let path = tidy(Path::new("/"), &format!("{}{rest}", home.display()));
                    note(self, &Word::Plain(path.to_string_lossy().into_owned()));
                }
            }
        }
    }

    fn contact(&mut self, name: &str, port: Option<u16>) {
        let name = name.trim_matches(['[', ']']).to_ascii_lowercase();
        self.needs.destination(Destination::Host { name, port });
    }

    fn not_known(&mut self, tool: &str, word: &Word) {
        let why = format!(
            "the host that `{tool}` connects to is not known: {}",
            word.source()
        );
        self.needs.unsure(Unsure::Destinations, why);
    }

    /// A URL; without a scheme it is one of http.
    pub(super) fn url(&mut self, tool: &str, word: &Word) {
        let whole = !matches!(word, Word::Open { .. });
        let known = word.known();
        let text = match known.contains("://") {
            true => known.to_owned(),
            false => format!("http://{known}"),
        };
        match address(&text, whole) {
            Some(Address::Host { name, port }) => {
                let (name, port) = (name.to_owned(), port);
                self.contact(&name, port);
            }
            Some(Address::File(path)) => self.read(&Word::Plain(path.to_owned())),
            None => self.not_known(tool, word),
        }
    }

    /// A host, perhaps with a user before it and a port after it.
    pub(super) fn host(&mut self, tool: &str, word: &Word, port: Option<u16>) {
        let Some(text) = word.text() else {
            self.not_known(tool, word);
            return;
        };
        if text.contains("://") {
            self.url(tool, word);
            return;
        }
        let text = text
            .rsplit_once('@')
            .map_or(text, |(_, host)| host)
            .to_owned();
        match text.rsplit_once(':') {
            Some((host, digits)) if !host.contains(':') => match digits.parse() {
                Ok(port) => self.contact(host, Some(port)),
                Err(_) => self.not_known(tool, word),
            },
            _ if text.is_empty() => self.not_known(tool, word),
            _ => self.contact(&text, port),
        }
    }

    /// `host:path` or a URL. `false` when it is a path of this machine.
    pub(super) fn far(&mut self, tool: &str, word: &Word, port: Option<u16>) -> bool {
        let known = word.known().to_owned();
        // A bucket of a storage service: which host has it depends on how the tool is set up.
        if ["s3://", "gs://", "az://"]
            .iter()
            .any(|scheme| known.starts_with(scheme))
        {
            self.not_known(tool, word);
            return true;
        }
        if known.contains("://") {
            self.url(tool, word);
            return true;
        }
        match known.split_once(':') {
            Some((host, _)) if !host.contains('/') && !host.is_empty() => {
                self.host(tool, &Word::Plain(host.to_owned()), port);
                true
            }
            Some(_) => false,
            None if matches!(word, Word::Open { .. }) && !known.contains('/') => {
                // What is not known may hold the colon.
                self.not_known(tool, word);
                false
            }
            None => false,
        }
    }

    /// A repository: a remote by its name, a URL, `host:path`, or a directory.
    pub(super) fn remote(&mut self, tool: &str, word: &Word) {
        if self.far(tool, word, Some(22)) {
            return;
        }
        match word {
            Word::Plain(text) if text.contains('/') || text.starts_with('.') => {
                self.read(word);
                self.write(word);
            }
            Word::Plain(text) => self.needs.destination(Destination::Remote(text.clone())),
            _ => self.not_known(tool, word),
        }
    }

    /// What a package manager is told to install.
    pub(super) fn package(&mut self, tool: &str, word: &Word, bundle: Option<&str>) {
        let known = word.known();
        if let Some((_, url)) = known.split_once("+").filter(|(_, url)| url.contains("://")) {
            let start = known.len() - url.len();
            self.url(tool, &word.without(start));
            return;
        }
        if known.contains("://") {
            let start = known.find("://").and_then(|at| known.get(..at));
            let scheme = start
                .and_then(|text| text.rfind([' ', '@']))
                .map_or(0, |at| at + 1);
            self.url(tool, &word.without(scheme));
            return;
        }
        let path = known.split('[').next().unwrap_or(known);
        let is_path = path.starts_with(['.', '/', '~'])
            || path.starts_with("file:")
            || [".whl", ".tar.gz", ".tgz", ".zip"]
                .iter()
                .any(|end| path.ends_with(end));
        match (word, bundle) {
            (Word::Plain(_), _) if is_path => {
                let path = path.strip_prefix("file:").unwrap_or(path).to_owned();
                let place = path.clone();
                self.read(&Word::Plain(path));
                let why = format!("`{tool}` executes code from the package");
                let archive = [".whl", ".tar.gz", ".tgz", ".zip"]
                    .iter()
                    .any(|end| place.ends_with(end));
                let within = if archive { ".".to_owned() } else { place };
                self.unread(&[within], &why);
            }
            (Word::Plain(_) | Word::Pattern { .. }, Some(bundle)) => {
                self.needs
                    .destination(Destination::Bundle(bundle.to_owned()));
            }
            // The index that it is told to use was seen.
            (Word::Plain(_) | Word::Pattern { .. }, None) => {}
            (Word::Open { .. }, _) => self.not_known(tool, word),
        }
    }

    /// `/dev/tcp/host/port`, which the shell connects to. `false` when it is a path.
    pub(crate) fn shell_socket(&mut self, word: &Word) -> bool {
        let known = word.known();
        let Some(rest) = ["/dev/tcp/", "/dev/udp/"]
            .iter()
            .find_map(|at| known.strip_prefix(at))
        else {
            return false;
        };
        match (rest.split_once('/'), word.text()) {
            (Some((host, port)), Some(_)) => {
                let (host, port) = (host.to_owned(), port.parse().ok());
                self.contact(&host, port);
            }
            _ => self.not_known("a redirection", word),
        }
        true
    }
}

/// Where a URL leads, if it leads to a host that is known. `whole` says whether the text is all of
/// it.
pub fn destination(url: &str, whole: bool) -> Option<Destination> {
    match address(url, whole)? {
        Address::Host { name, port } => {
            let name = name.trim_matches(['[', ']']).to_ascii_lowercase();
            Some(Destination::Host { name, port })
        }
        Address::File(_) => None,
    }
}

/// Takes a URL apart. `None` where its host is not known.
fn address(text: &str, whole: bool) -> Option<Address<'_>> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = scheme
        .rsplit('+')
        .next()
        .unwrap_or(scheme)
        .to_ascii_lowercase();
    if scheme == "file" {
        return Some(Address::File(rest));
    }
    let end = rest.find(['/', '?', '#', '\\']);
    if end.is_none() && !whole {
        return None;
    }
    let authority = rest.get(..end.unwrap_or(rest.len()))?;
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let implied = PORTS
        .iter()
        .find(|(name, _)| *name == scheme)
        .map(|(_, port)| *port);
    let after_bracket = host.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match host.get(after_bracket..)?.rsplit_once(':') {
        Some((before, digits)) => {
            let name = host.get(..after_bracket + before.len())?;
            (name, Some(digits.parse().ok()?))
        }
        None => (host, implied),
    };
    let fits = |char: char| char.is_alphanumeric() || "-._:[]".contains(char);
    (!name.is_empty() && name.chars().all(fits)).then_some(Address::Host { name, port })
}
