//! Why a cage did not start. The errors themselves, with their data and text, are in the crates
//! that return them (`StartError`, `RunError`, `PlanError`).

codes! {
    /// Why a cage did not start.
    StartCode

    /// The policy cannot be read, or is not valid.
    PolicyInvalid
        "start-policy-invalid"
        => "Fix the line that the error names; `ironcage policy check` checks a file.";
    /// A layer that the policy requires is not available on this host.
    LayerMissing
        "start-layer-missing"
        => "`ironcage doctor` says how to get it; `--allow-degraded LAYER` starts without it.";
    /// The side-channel mitigation that the policy asks for is not available on this host.
    SideChannels
        "start-side-channels"
        => "`--side-channels cores`, or a separate machine.";
    /// The isolation cannot do something that the policy asks for.
    Unsupported
        "start-unsupported"
        => "Use another `--isolation`, or leave out what the error names.";
    /// The run cannot be observed, because another seccomp listener exists.
    CannotObserve
        "start-cannot-observe"
        => "Run without `--observe`.";
    /// The system call list has no execve, and nobody can allow the first one.
    NoFirstExec
        "start-no-first-exec"
        => "Use another system call list.";
    /// The host has no certificate authorities to verify servers.
    NoAuthorities
        "start-no-authorities"
        => "Install ca-certificates, or set `SSL_CERT_FILE`.";
    /// The upstream proxy of the caller's environment or the policy cannot be used.
    UpstreamProxy
        "start-upstream-proxy"
        => "Set `HTTPS_PROXY` to `http://HOST:PORT`, or connect directly: `--upstream-proxy off`.";
    /// A path of the policy does not exist.
    PathMissing
        "start-path-missing"
        => "Create the path, or remove it from the policy.";
    /// A path that no cage may have.
    PathRefused
        "start-path-refused"
        => "Use another path.";
    /// A path that needs an explicit flag, because it holds credentials or control sockets.
    PathGuarded
        "start-path-guarded"
        => "Give a smaller part, or the flag that the error names.";
    /// A hide pattern matches below a directory with too many files.
    HideTooBroad
        "start-hide-too-broad"
        => "Hide a whole directory, or start the pattern at a smaller one.";
    /// The directory cannot be the workspace.
    WorkspaceRefused
        "start-workspace-refused"
        => "Start in a project directory.";
    /// A copy-on-write view of the directory cannot be created.
    CopyOnWrite
        "start-copy-on-write"
        => "`--workspace-mode direct`, or copy the directory to another file system.";
    /// The file system cannot map the owner of the files.
    OwnerMap
        "start-owner-map"
        => "Start the cage as the owner of the files, or copy them to another file system.";
    /// The working directory is not visible in the cage.
    WorkingDirectory
        "start-working-directory"
        => "Change to a directory in the cage's view.";
    /// No command was given.
    NoCommand
        "start-no-command"
        => "Name a command: `ironcage run -- COMMAND`.";
    /// The policy names a system call list or group that does not exist.
    UnknownSyscalls
        "start-unknown-syscalls"
        => "`docs/reference/policy.md` has the names.";
    /// The capability does not exist, or cages cannot have it.
    CapabilityRefused
        "start-capability-refused"
        => "Leave the capability out.";
    /// The host socket cannot be given to the cage.
    SocketRefused
        "start-socket-refused"
        => "Check the path of the socket.";
    /// A key of an ssh-agent or gpg-agent cannot be used.
    KeyRefused
        "start-key-refused"
        => "Check that the agent runs and has the key, and that your known_hosts has the host.";
    /// The bundle of hosts cannot be used.
    BundleRefused
        "start-bundle-refused"
        => "Check the name of the bundle.";
    /// The policy unprotects a path that is not protected.
    NotProtected
        "start-not-protected"
        => "Remove the entry.";
    /// A user namespace, or another namespace of the cage, cannot be created.
    NoUserNamespace
        "start-no-user-namespace"
        => "`ironcage doctor` names the setting of the host that forbids it.";
    /// A pipe or socket between supervisor and cage cannot be created.
    NoPipes
        "start-no-pipes"
        => "Raise the limit on open files.";
    /// No free range of user IDs for the cage.
    NoIds
        "start-no-ids"
        => "End other cages, or check the file that the error names.";
    /// A cgroup for the cage cannot be created.
    NoCgroup
        "start-no-cgroup"
        => "`ironcage doctor` says what to delegate.";
    /// The kernel refused to apply a layer.
    LayerFailed
        "start-layer-failed"
        => "`ironcage doctor` examines this host.";
    /// The egress proxy did not start.
    ProxyFailed
        "start-proxy-failed"
        => "Read the cause; `ironcage doctor` examines this host.";
    /// A secret of the policy cannot be read.
    SecretMissing
        "start-secret-missing"
        => "Set the variable, or say where the value is: `--secret NAME=file:/PATH@HOST`.";
    /// The AWS keys of the policy cannot be read.
    AwsKeysMissing
        "start-aws-keys-missing"
        => "Set the AWS variables, or name another source in `[network.aws]`.";
    /// A login of the policy cannot be read, or not renewed.
    LoginMissing
        "start-login-missing"
        => "Log in on the host with the program whose login it is.";
    /// The isolation has no terminal.
    NoTerminal
        "start-no-terminal"
        => "Start without `-t`.";
    /// The isolation has no scopes.
    NoScopes
        "start-no-scopes"
        => "Use `--isolation namespace`.";
    /// No prepared cage goes with the plan.
    NotPrepared
        "start-not-prepared"
        => "Start the cage without preparing it, or prepare one by a plan of the same kind.";
    /// The first process of the cage did not answer in time.
    Timeout
        "start-timeout"
        => "Try again; the host may be overloaded.";
    /// The first process of the cage ended before the command was started.
    FirstProcessEnded
        "start-first-process-ended"
        => "`ironcage doctor` examines this host; memory may be too low.";
    /// A port cannot be published on the host's loopback.
    PortTaken
        "start-port-taken"
        => "`--publish 0:PORT` takes any free port.";
    /// The directory of a host socket cannot be opened.
    SocketDirectory
        "start-socket-directory"
        => "Check that the directory of the socket exists.";
    /// No random bytes for the cage's ID.
    NoId
        "start-no-id"
        => "Check `/dev/urandom` of the host.";
    /// The audit log cannot be written.
    NoAuditLog
        "start-no-audit-log"
        => "Make the state directory writable; a cage does not run without its log.";
    /// The control socket cannot be created, or the name is taken.
    NoControlSocket
        "start-no-control-socket"
        => "Choose another `--name`, or check the runtime directory.";
    /// The output of a background cage cannot be kept.
    NoOutputLog
        "start-no-output-log"
        => "Make the state directory writable.";
    /// Not enough CPU cores for the cage alone.
    NoCores
        "start-no-cores"
        => "Ask for fewer with `--cpus`, or end other cages.";
    /// A program that belongs to Ironcage is missing.
    ProgramMissing
        "start-program-missing"
        => "Install Ironcage completely.";
    /// The parent cage did not allow the child.
    ChildRefused
        "start-child-refused"
        => "Read the reason; the parent's policy decides.";
    /// The plan does not match the values of this run.
    NotBound
        "start-not-bound"
        => "Report it; this is a bug.";
    /// The disk limit cannot be enforced in a writable directory.
    DiskNotMeasured
        "start-disk-not-measured"
        => "Make the directory readable, or do not give it for writing.";
    /// The supervisor failed, and ended the cage.
    SupervisorFailed
        "start-supervisor-failed"
        => "Read the error; this may be a bug.";
}
