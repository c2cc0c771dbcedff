//! One connection: requests, one after the other.

use crate::archive;
use crate::files;
use crate::forward;
use crate::output::Next;
use crate::processes::{Process, Processes};
use crate::protocol::{self, Failure, FailureCode, Kind, Reply, Request};
use crate::watch;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::io::Errno;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The other side is told, and may go on.
    #[error(transparent)]
    Failed(Failure),
    /// The connection cannot be used any more.
    #[error("the connection ended")]
    Connection(#[from] io::Error),
}

impl RequestError {
    pub(crate) fn new(code: FailureCode, message: String) -> RequestError {
        RequestError::Failed(Failure { code, message })
    }

    /// A failure of `cannot WHAT`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> RequestError {
        let what = what.into();
        move |error| {
            let code = error.raw_os_error().map_or(FailureCode::Io, |number| {
                code_of(Errno::from_raw_os_error(number))
            });
            RequestError::new(code, format!("cannot {what}: {error}"))
        }
    }
}

pub(crate) fn from_errno(error: Errno, what: &str) -> RequestError {
    RequestError::io(what)(error.into())
}

fn code_of(error: Errno) -> FailureCode {
    match error {
        Errno::NOENT => FailureCode::NotFound,
        Errno::EXIST => FailureCode::AlreadyExists,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureCode::PermissionDenied,
        Errno::NOTDIR => FailureCode::NotADirectory,
        Errno::ISDIR => FailureCode::IsADirectory,
        Errno::NOTEMPTY => FailureCode::NotEmpty,
        Errno::NOSPC | Errno::DQUOT => FailureCode::NoSpace,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::XDEV => {
            FailureCode::InvalidArgument
        }
        Errno::MFILE | Errno::NFILE | Errno::AGAIN => FailureCode::TooMany,
        _ => FailureCode::Io,
    }
}

/// The path that a request names.
pub(crate) fn expand(path: &str) -> Result<PathBuf, RequestError> {
    if path.contains('\0') {
        return Err(RequestError::new(
            FailureCode::InvalidArgument,
            "a path cannot contain NUL".into(),
        ));
    }
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into()));
    let below_home = path
        .strip_prefix("~/")
        .map(|rest| home().join(rest.trim_start_matches('/')));
    let path = match (path, below_home) {
        ("~", _) => home(),
        (_, Some(path)) => path,
        ("", _) => {
            return Err(RequestError::new(
                FailureCode::InvalidArgument,
                "the path is empty".into(),
            ));
        }
        (path, None) => {
            let here =
                std::env::current_dir().map_err(RequestError::io("find the working directory"))?;
            here.join(path)
        }
    };
    // Without what changes nothing, such as `./`.
    Ok(path.components().collect())
}

/// The stream of a connection.
pub(crate) struct Stream {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Stream {
    pub(crate) fn reply(&mut self, reply: &Reply) -> Result<(), RequestError> {
        let body = serde_json::to_vec(reply).map_err(io::Error::from)?;
        match body.len() <= protocol::MAX_PAYLOAD {
            true => Ok(protocol::write(&mut self.writer, Kind::Json, &body)?),
            false => Err(RequestError::new(
                FailureCode::TooMany,
                "the answer is longer than answers may be".into(),
            )),
        }
    }

    pub(crate) fn data(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), RequestError> {
        for chunk in bytes.chunks(protocol::CHUNK) {
            protocol::write(&mut self.writer, kind, chunk)?;
        }
        Ok(())
    }

    /// The next data of a request; `None` at its end.
    pub(crate) fn next_data(&mut self) -> Result<Option<Vec<u8>>, RequestError> {
        match protocol::read(&mut self.reader)? {
            Some((Kind::Data, bytes)) => Ok(Some(bytes)),
            Some((Kind::End, _)) => Ok(None),
            Some(_) => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// Takes what is left of the data of a request that failed, so that the next one can be read.
    pub(crate) fn skip_data(&mut self) -> Result<(), RequestError> {
        while self.next_data()?.is_some() {}
        Ok(())
    }

    pub(crate) fn socket(&self) -> &UnixStream {
        &self.writer
    }

    /// Both directions, for two threads.
    pub(crate) fn halves(&mut self) -> (&mut BufReader<UnixStream>, &mut UnixStream) {
        (&mut self.reader, &mut self.writer)
    }
}

/// Serves a connection to its end.
pub(crate) fn serve(stream: UnixStream, processes: &Processes) -> io::Result<()> {
    let reader = BufReader::new(stream.try_clone()?);
    let mut stream = Stream {
        reader,
        writer: stream,
    };
    while let Some((kind, body)) = protocol::read(&mut stream.reader)? {
        if kind != Kind::Json {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let done = match serde_json::from_slice(&body) {
            Ok(request) => carry_out(request, &mut stream, processes),
            Err(error) => return Err(io::Error::from(error)),
        };
        let last = match done {
            Ok(()) => Reply::Done,
            Err(RequestError::Failed(failure)) => Reply::Failed(failure),
            Err(RequestError::Connection(error)) => return Err(error),
        };
        match stream.reply(&last) {
            Ok(()) => {}
            Err(RequestError::Connection(error)) => return Err(error),
            Err(RequestError::Failed(_)) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

fn carry_out(
    request: Request,
    stream: &mut Stream,
    processes: &Processes,
) -> Result<(), RequestError> {
    match request {
        Request::Info => {
            let path = |path: PathBuf| path.to_string_lossy().into_owned();
            stream.reply(&Reply::Info {
                home: path(expand("~")?),
                cwd: path(expand(".")?),
            })
        }
        Request::Start { start, follow } => {
            let process = processes.start(start)?;
            stream.reply(&Reply::Process {
                process: process.state(),
            })?;
            match follow {
                true => follow_output(&process, Some(0), stream),
                false => Ok(()),
            }
        }
        Request::Follow { pid, from } => {
            let process = processes.get(pid)?;
            stream.reply(&Reply::Process {
                process: process.state(),
            })?;
            follow_output(&process, from, stream)
        }
        Request::Processes => {
            // One in each message: their arguments can be long.
            for process in processes.list() {
                stream.reply(&Reply::Process { process })?;
            }
            Ok(())
        }
        Request::Process { pid } => {
            let process = processes.get(pid)?.state();
            stream.reply(&Reply::Process { process })
        }
        Request::Input { pid, close } => {
            let written = processes.get(pid).and_then(|process| {
                while let Some(bytes) = stream.next_data()? {
                    if let Err(error) = process.write(&bytes) {
                        stream.skip_data()?;
                        return Ok(Err(error));
                    }
                }
                if close {
                    process.close_input();
                }
                Ok(Ok(()))
            });
            match written {
                Ok(result) => result,
                Err(RequestError::Failed(failure)) => {
                    stream.skip_data()?;
                    Err(RequestError::Failed(failure))
                }
                Err(error) => Err(error),
            }
        }
        Request::Signal { pid, signal } => processes.get(pid)?.signal(signal),
        Request::Resize { pid, size } => processes.get(pid)?.resize(size),
        Request::Pack { paths, except } => {
            let paths: Result<Vec<_>, _> = paths.iter().map(|path| expand(path)).collect();
            let except: Result<_, _> = except.iter().map(|path| expand(path)).collect();
            archive::pack(&paths?, except?, stream)
        }
        Request::Unpack { clear, into } => {
            let clear: Result<Vec<_>, _> = clear.iter().map(|path| expand(path)).collect();
            let into = into.as_deref().map_or(Ok("/".into()), expand);
            match (clear, into) {
                (Ok(clear), Ok(into)) => archive::unpack(clear, &into, stream),
                (Err(error), _) | (_, Err(error)) => {
                    stream.skip_data()?;
                    Err(error)
                }
            }
        }
        Request::Connect { port } => forward::connect(port, stream),
        Request::Watch { path, recursive } => watch::watch(&expand(&path)?, recursive, stream),
        about_files => files::carry_out(about_files, stream),
    }
}

/// Passes output on, until the process is over or the other side is gone.
fn follow_output(
    process: &Process,
    from: Option<u64>,
    stream: &mut Stream,
) -> Result<(), RequestError> {
    let follower = process.output.follow(from);
    stream.reply(&Reply::Following {
        from: follower.from,
    })?;
    // A follower that waits does not notice the end of its connection: another thread looks.
    let socket = stream.socket().try_clone()?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (wake_read, wake_write) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut fds = [
                PollFd::new(&socket, PollFlags::RDHUP),
                PollFd::new(&wake_read, PollFlags::IN),
            ];
            while matches!(poll(&mut fds, None), Err(Errno::INTR)) {}
            stop.store(true, std::sync::atomic::Ordering::Release);
            process.output.wake();
        });
        let result = loop {
            match follower.next(&stop) {
                Some(Next::Bytes(kind, bytes)) => {
                    if let Err(error) = stream.data(kind, &bytes) {
                        break Err(error);
                    }
                }
                Some(Next::Exit(exit)) => break stream.reply(&Reply::Exited { exit }),
                None => break Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        };
        drop(wake_write);
        result
    })
}
