//! Why a lease is denied, needs a person's approval, or is not needed.

reasons! {
    /// Why a lease is denied, needs approval, or is not needed.
    LeaseReason

    /// Keys are used as the policy says, and never leased.
    KeyNotLeased
        "lease-key-not-leased"
        "keys are not leased: the policy names them at the start"
        => "`--ssh-key KEY@HOST` or `--sign-key ssh:KEY` when the cage starts.";
    /// The cage's policy has no ceiling, so the cage can get no leases.
    NoCeiling
        "lease-no-ceiling"
        "the cage's policy has no ceiling, so it can get no leases; add [ceiling.ask.files], [ceiling.ask.network] or another part to its policy and start it again"
        => "Add a part of `[ceiling]` to the policy and start the cage again.";
    /// The ceiling does not contain the resource.
    AboveCeiling { resource: String, section: String }
        "lease-above-ceiling"
        "{resource} is outside the cage's ceiling; add it to [ceiling.ask.{section}] in the policy"
        => "Add the resource to the `[ceiling.ask]` section that the text names. An agent asks the user to do that.";
    /// A `deny` part of the ceiling covers the resource, or a part of it.
    DeniedByCeiling { resource: String, origin: String }
        "lease-denied-by-ceiling"
        "the ceiling denies {resource} ({origin})"
        => "Do without it, or remove the entry from `[ceiling.deny]`.";
    /// The policy denies the host to this cage. A lease cannot override that.
    DeniedByPolicy { rule: String, origin: String }
        "lease-denied-by-policy"
        "the policy denies {rule} to this cage ({origin})"
        => "Do without the host, or remove it from `network.deny`.";
    /// A Cedar rule forbids the lease.
    DeniedByRule { said: String }
        "lease-denied-by-rule"
        "{said}"
        => "Read the rule that the text names.";
    /// The policy has Cedar rules, and this program cannot evaluate them.
    RulesNotEvaluated { origin: String }
        "lease-rules-not-evaluated"
        "cannot evaluate the policy's Cedar rules here ({origin})"
        => "Use an Ironcage that is built with the feature `cedar`.";
    /// Too many requests in one second.
    TooManyRequests { limit: u64 }
        "lease-too-many-requests"
        "more than {limit} requests in one second"
        => "Wait and ask again.";
    /// Too many requests in a short time.
    RequestRate
        "lease-request-rate"
        "too many requests in a short time; ask again later"
        => "Wait a minute and ask again.";
    /// The cage has as many open leases as it can have.
    TooManyOpen { limit: u64 }
        "lease-too-many-open"
        "this cage already has {limit} open leases; revoke some first"
        => "Revoke leases that are not needed (`ironcage revoke`).";
    /// An open lease overlaps the request, so neither could end without the other.
    Overlaps { lease: u64, resource: String }
        "lease-overlaps"
        "lease {lease} ({resource}) overlaps with this request; revoke it first"
        => "Revoke the other lease, then ask again.";
    /// The request for a path came without a descriptor of the path.
    NoDescriptor
        "lease-no-descriptor"
        "a request for a path needs a descriptor of the path"
        => "Use `ironcage ask` or `ironcage grant`, which send one.";
    /// The path cannot be inspected.
    PathNotInspected { error: String }
        "lease-path-not-inspected"
        "cannot inspect the path: {error}"
        => "Check that the path exists and its file system answers.";
    /// The path, or the directory around it, does not exist, or a link leads out of the ceiling.
    PathNotFound
        "lease-path-not-found"
        "the path and the directory around it do not exist, or lead out of the ceiling"
        => "Create the directory first, or check the path.";
    /// The path changed between the request and the approval.
    PathReplaced
        "lease-path-replaced"
        "the requested path is gone: it was moved or replaced after the request"
        => "Ask again.";
    /// The path is not valid UTF-8.
    PathNotUtf8
        "lease-path-not-utf8"
        "the path is not UTF-8; lease the directory around it"
        => "Lease the directory around it.";
    /// The path is not absolute, or contains `.` or `..`.
    PathNotAbsolute
        "lease-path-not-absolute"
        "expected an absolute path without `.` and `..`"
        => "Name the path in full.";
    /// The path is a pipe, a device or a socket.
    PathNotAFile
        "lease-path-not-a-file"
        "cannot lease a host pipe or device; request a socket with --socket"
        => "Lease a directory or a regular file; for sockets use `--socket`.";
    /// Ironcage never leases this path, for example its own state.
    PathNever { path: String, why: String }
        "lease-path-never"
        "cannot lease {path}: {why}"
        => "Use another path.";
    /// The directory contains a file that the host executes or trusts.
    PathExecuted { name: String }
        "lease-path-executed"
        "the directory contains {name}, which the host executes or trusts; lease another directory next to it"
        => "Lease a directory without such files.";
    /// A lease on the directory would cover what the cage has below it.
    PathCoversView { path: String }
        "lease-path-covers-view"
        "the directory contains {path}, and the lease would cover what the cage has there; lease another directory next to it"
        => "Lease a more specific directory.";
    /// The cage's plan hides or protects the path.
    PathClosed { origin: String }
        "lease-path-closed"
        "the cage's plan closes this path ({origin})"
        => "Change the entry of the policy that the text names.";
    /// The workspace is read-only, and a lease in it would write to the real files.
    WorkspaceReadOnly
        "lease-workspace-read-only"
        "the workspace is read-only, and a lease in it would write to the real files; start the cage with --workspace-mode leased to keep changes pending"
        => "Start the cage with `--workspace-mode leased`.";
    /// The cage has a private directory in the place of the requested one.
    PathPrivate
        "lease-path-private"
        "the host's is outside the cage's ceiling; the cage has a private directory there, which it can read and write"
        => "Use the cage's own directory, or add the host's path to the ceiling.";
    /// The contact is not a host that a network rule can name.
    HostNotNamable
        "lease-host-not-namable"
        "a network rule cannot name this host"
        => "Use a host name or an address.";
    /// A lease must allow at least one use.
    NoUses
        "lease-no-uses"
        "a lease must allow at least one use"
        => "Ask for one use or more.";
    /// The uses of this kind of resource cannot be counted.
    UsesNotCounted { kind: String }
        "lease-uses-not-counted"
        "cannot count the uses of a {kind}; set a duration instead"
        => "Ask for a duration instead.";
    /// A lease for one command ends with the command, so its uses are not counted.
    UsesOfCommand
        "lease-uses-of-command"
        "cannot limit the uses of a lease for one command: it ends with the command"
        => "Ask without a number of uses.";
    /// System call filters and capabilities of a running cage can only tighten.
    FiltersOnlyTighten { kind: String }
        "lease-filters-only-tighten"
        "cannot lease a {kind} to a running cage, because its filters can only tighten; use `ironcage exec --lease` for one command"
        => "Run one command with it: `ironcage exec --lease`.";
    /// The policy restricts requests to this host; a lease on the whole host would not allow others.
    RequestsOnly { rule: String, origin: String }
        "lease-requests-only"
        "the policy restricts requests to this host ({rule}, {origin}), and a lease on the host would not allow others; request them with --http"
        => "Ask for the request with `--http`.";
    /// Only the limits memory, cpus and pids can be raised in a running cage.
    LimitFixed
        "lease-limit-fixed"
        "a running cage can get leases only for the limits memory, cpus and pids"
        => "Start the cage again with another limit.";
    /// The limit is not enforced by a cgroup on this host, so it cannot be raised.
    LimitWithoutCgroup { limit: String }
        "lease-limit-without-cgroup"
        "no cgroup enforces the {limit} limit on this host, and its replacement can only tighten; `ironcage doctor` reports what is missing"
        => "Run `ironcage doctor` and delegate the missing controller.";
    /// The socket did not exist when the cage started.
    SocketUnknown
        "lease-socket-unknown"
        "the socket did not exist when the cage started; start the cage again"
        => "Start the cage again.";
    /// The mechanism that opens the lease failed.
    NotOpened { error: String }
        "lease-not-opened"
        "cannot open the lease: {error}"
        => "Read the error; the audit log has the lease as not opened.";
    /// What a command wrote under a leased name could not be put in its place.
    NotPlaced { error: String }
        "lease-not-placed"
        "cannot put what was written in its place: {error}"
        => "Look at what is at the path on the host; the command has to write it again.";
    /// A directory cannot be given for writing, because its growth cannot be measured.
    DiskNotMeasured { path: String, error: String }
        "lease-disk-not-measured"
        "cannot open {path} to enforce the disk limit in it: {error}"
        => "Make the directory readable, or lease another one.";
    /// A scope or a child cage is starting and would share the path.
    StartInProgress
        "lease-start-in-progress"
        "a scope or child cage that would share this path is starting; ask again"
        => "Ask again in a moment.";
    /// Private data and untrusted content would meet while something could still leave the cage.
    ClosingExits { exit: String }
        "lease-closing-exits"
        "private data and untrusted content would meet in this cage; {exit}, through which data could leave, is being closed first; ask again"
        => "Ask again in a moment.";
    /// Private data and untrusted content have met in the cage since the request.
    TaintChanged
        "lease-taint-changed"
        "private data and untrusted content have met in this cage since the request; ask again"
        => "Ask again.";
    /// A person denied the request.
    DeniedByOperator { said: String }
        "lease-denied-by-operator"
        "{said}"
        => "Do without it; the text is what the person said.";
    /// A person denied the same request a short while ago.
    DeniedBefore { said: String }
        "lease-denied-before"
        "a person denied this request before{said}"
        => "Do without it. `questions.remember` in the policy says how long a denial is remembered.";
    /// The request ended without an answer.
    NotAnswered { how: String }
        "lease-not-answered"
        "{how}"
        => "Ask again when somebody can answer.";
    /// A person was asked and has not answered yet.
    StillPending { because: String, question: u64 }
        "lease-still-pending"
        "{because}: the user was asked (request {question}) and has not answered yet; try again later"
        => "Try again later; the user answers with `ironcage approve`.";
    /// Too many requests already wait for an answer.
    TooManyPending { because: String, limit: u64 }
        "lease-too-many-pending"
        "{because}, and {limit} requests already wait for an answer; ask again later"
        => "Wait until the user has answered the others.";
    /// The cage asked a person too often within an hour.
    TooManyQuestions { because: String, limit: u64 }
        "lease-too-many-questions"
        "{because}, and the cage has asked {limit} times within an hour"
        => "Wait. `questions.per-hour` in the policy sets the limit.";
    /// No request with this number waits for an answer.
    NoSuchQuestion { question: u64 }
        "lease-no-such-question"
        "no request {question} waits for an answer in this cage"
        => "List the pending requests: `ironcage request list`.";
    /// No lease with this number is open.
    NoSuchLease { which: String }
        "lease-no-such-lease"
        "no lease {which} is open in this cage"
        => "List the leases: `ironcage lease list`.";

    /// Not a denial: the cage has the resource without a lease.
    InBase { origin: String }
        "lease-not-needed"
        "the cage already has it ({origin})"
        => "Use it; no lease is needed.";
    /// Not a denial: the cage can access the path without a lease.
    PathInBase { right: String, origin: String }
        "lease-path-not-needed"
        "the cage can already {right} it ({origin})"
        => "Use it; no lease is needed.";

    /// The ceiling requires a person's approval.
    ApprovalRequired { resource: String, origin: String }
        "approval-required"
        "the ceiling requires approval for {resource} ({origin})"
        => "The user answers with `ironcage approve` or `ironcage deny`.";
    /// A Cedar rule requires a person's approval.
    ApprovalByRule { said: String }
        "approval-required-by-rule"
        "{said}"
        => "The user answers with `ironcage approve` or `ironcage deny`.";
    /// The cage has done something that its model did not announce, so nothing is granted without approval.
    ApprovalAfterDrift { resource: String }
        "approval-required-after-drift"
        "{resource} needs approval: this cage has diverged from what its model announced"
        => "Look at the cage (`ironcage lease list -f`), then approve or deny.";
    /// The model announced other resources and not this one.
    ApprovalUnannounced { resource: String }
        "approval-required-unannounced"
        "{resource} needs approval: the model announced other resources, but not this one"
        => "The user answers with `ironcage approve` or `ironcage deny`.";
    /// The user's task names other resources and not this one.
    ApprovalOutsideTask { resource: String, task: String }
        "approval-required-outside-task"
        "{resource} needs approval: the task names {task}, but not this"
        => "The user answers with `ironcage approve` or `ironcage deny`.";
    /// The judge of the policy has a person asked, or did not answer.
    ApprovalByJudge { resource: String, said: String }
        "approval-required-by-judge"
        "{resource} needs approval: the judge {said}"
        => "The user answers with `ironcage approve` or `ironcage deny`.";
    /// The judge of the policy denies it.
    DeniedByJudge { said: String }
        "lease-denied-by-judge"
        "the judge denies it: {said}"
        => "Do without it, or ask the user to change `intent.judge`.";
    /// Data could leave the cage through it, and private data and untrusted content are, or would be, in the cage.
    ApprovalCouldLeak { resource: String, when: String }
        "approval-required-could-leak"
        "{resource} needs approval because data could leave through it: private data and untrusted content {when} (see `ironcage why`)"
        => "Check what the cage has read before approving.";
}
