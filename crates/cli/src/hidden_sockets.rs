//! Host sockets that the programs of a command connect to, and that a cage does not have: the
//! programs say only that a daemon is not there.

use ironcage_model::Printable;
use ironcage_plan::{Plan, socket_controls};
use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Where programs find a socket, unless something else is set.
struct SocketUse {
    programs: &'static [&'static str],
    /// Variables with its path, or with its address as `unix://PATH`.
    variables: &'static [&'static str],
    /// Usual places; `@run` is the user's runtime directory.
    places: &'static [&'static str],
    /// The better way to the same thing, if there is one.
    instead: Option<&'static str>,
}

const USES: [SocketUse; 5] = [
    SocketUse {
        programs: &["docker", "docker-compose"],
        variables: &["DOCKER_HOST"],
        places: &["/run/docker.sock", "@run/docker.sock"],
        instead: None,
    },
    SocketUse {
        programs: &["ssh", "ssh-add", "scp", "sftp"],
        variables: &["SSH_AUTH_SOCK"],
        places: &[],
        instead: Some(
            "--ssh-key KEY@HOST --allow-host HOST:22 uses a key of your agent for a host",
        ),
    },
    SocketUse {
        programs: &[
            "psql",
            "pg_dump",
            "pg_restore",
            "pg_isready",
            "createdb",
            "dropdb",
        ],
        variables: &[],
        places: &["/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5432"],
        instead: None,
    },
    SocketUse {
        programs: &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mariadb",
            "mariadb-dump",
        ],
        variables: &["MYSQL_UNIX_PORT"],
        places: &["/run/mysqld/mysqld.sock", "/tmp/mysql.sock"],
        instead: None,
    },
    SocketUse {
        programs: &["redis-cli", "valkey-cli"],
        variables: &[],
        places: &["/run/redis/redis-server.sock", "/run/redis/redis.sock"],
        instead: None,
    },
];

/// Whether a path of the host is a socket.
pub(crate) fn is_socket(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|found| found.file_type().is_socket())
}

/// The flags that let a cage connect to a socket.
pub(crate) fn flags(path: &Path) -> String {
    let shown = Printable::new(path);
    match socket_controls(path) {
        Some(what) => format!("--allow-socket {shown} --i-know (it controls {what})"),
        None => format!("--allow-socket {shown}"),
    }
}

/// The sockets of the host that these programs use and that a cage with this plan does not have,
/// each with what gives a cage its use. `variable` reads the caller's environment.
pub(crate) fn of_programs<'p>(
    plan: &Plan,
    programs: impl Iterator<Item = &'p str>,
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Vec<(PathBuf, String)> {
    let run = variable("XDG_RUNTIME_DIR");
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for program in programs {
        let name = Path::new(program).file_name().and_then(OsStr::to_str);
        let mut uses = USES.iter();
        let Some(used) = uses.find(|used| name.is_some_and(|name| used.programs.contains(&name)))
        else {
            continue;
        };
        let named = used.variables.iter().filter_map(|name| {
            let value = variable(name)?.into_string().ok()?;
            let path = value.strip_prefix("unix://").unwrap_or(&value);
            path.starts_with('/').then(|| PathBuf::from(path))
        });
        let usual = used
            .places
            .iter()
            .filter_map(|place| match place.strip_prefix("@run/") {
                Some(below) => Some(Path::new(run.as_ref()?).join(below)),
                None => Some(PathBuf::from(place)),
            });
        let Some(path) = named.chain(usual).find(|path| is_socket(path)) else {
            continue;
        };
        if has(plan, &path, used.variables) || found.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let remedy = used.instead.map_or_else(|| flags(&path), str::to_owned);
        found.push((path, remedy));
    }
    found
}

/// Whether a cage has this socket, or another one that its variables lead to.
fn has(plan: &Plan, path: &Path, variables: &[&str]) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut sockets = plan.network.iter().flat_map(|network| &network.sockets);
    let mut inside = plan.command.env.iter();
    sockets.any(|socket| socket.what.path == real)
        || inside.any(|variable| variables.iter().any(|name| variable.what.name == *name))
}
