//! Why a supervisor denies something that is not a lease: a command, a child cage, a channel.

reasons! {
    /// Why a supervisor denies a command, a child cage, a channel or a request.
    SupervisorReason

    /// The cage is being stopped.
    Stopping
        "cage-stopping"
        "the cage is being stopped"
        => "Start the cage again.";
    /// The change of the cage is being applied, so its processes are paused.
    ChangeInProgress
        "cage-change-in-progress"
        "the change of this cage is being applied; try again"
        => "Try again in a moment.";
    /// Something else in the cage must end before its change can be applied.
    ChangeInUse { by: String }
        "cage-change-in-use"
        "{by}; try again when that has ended"
        => "Try again when it has ended.";
    /// The change belongs to the parent cage.
    ChangeOfParent
        "cage-change-of-parent"
        "the change is its parent's; name that cage"
        => "Name the parent cage.";
    /// The cage is frozen, because it diverged from what its model announced.
    Frozen
        "cage-frozen"
        "the cage is frozen because it diverged from what its model announced; review `ironcage lease list -f`, then `ironcage resume` or `ironcage stop`"
        => "Review it, then `ironcage resume` or `ironcage stop`.";
    /// The cage is paused.
    Paused
        "cage-paused"
        "the cage is paused; `ironcage resume` resumes it"
        => "`ironcage resume` it, or wait until it is resumed.";
    /// The cage is not frozen.
    NotFrozen
        "cage-not-frozen"
        "the cage is not frozen"
        => "Nothing to do.";
    /// The cage does not respond to the supervisor.
    Unresponsive { error: String }
        "cage-unresponsive"
        "the cage does not respond: {error}"
        => "Stop the cage and start it again.";
    /// The supervisor has too much to do.
    Busy
        "cage-busy"
        "the cage is busy; ask again later"
        => "Ask again later.";
    /// Too many requests in a short time.
    RequestRate
        "cage-request-rate"
        "too many requests in a short time; ask again later"
        => "Ask again later.";
    /// Too many clients are connected to the control socket.
    TooManyClients { limit: u64 }
        "cage-too-many-clients"
        "{limit} clients are connected to this cage; try again"
        => "Try again.";
    /// The peer of the control socket is another user, or in another namespace.
    PeerRejected { error: String }
        "cage-peer-rejected"
        "{error}"
        => "Run the command as the user who started the cage, outside every cage.";
    /// The connection has already started a command.
    ConnectionInUse
        "cage-connection-in-use"
        "this connection has already started a command; use another"
        => "Connect again.";
    /// The request is not valid.
    RequestInvalid { error: String }
        "cage-request-invalid"
        "{error}"
        => "Fix the request; the text says what is expected.";
    /// The descriptors beside the request are not what it needs.
    WrongDescriptors { expected: String }
        "cage-wrong-descriptors"
        "expected {expected} with the request"
        => "Use the `ironcage` command, which sends them.";
    /// The cage runs in the foreground, so nobody can attach to it.
    Foreground
        "cage-in-foreground"
        "this cage runs in the foreground: its streams belong to the command that started it"
        => "Start the cage with `-d`.";

    /// Too many commands run in the cage.
    TooManyCommands { limit: u64 }
        "exec-too-many-commands"
        "{limit} other commands already run in this cage; try again later"
        => "Wait until one has ended.";
    /// The system call list allows one program, and that has been executed.
    OneProgramOnly
        "exec-one-program-only"
        "the cage's system call list allows one program, and that has been executed; start it with --syscalls standard"
        => "Start the cage with `--syscalls standard`.";
    /// Host descriptors cannot be passed into a cage.
    HostDescriptors
        "exec-host-descriptors"
        "host descriptors cannot be passed into a cage"
        => "Use pipes.";
    /// The command could not be started.
    ExecFailed { error: String }
        "exec-failed"
        "cannot start the command: {error}"
        => "Read the error.";

    /// The isolation of this cage has no scopes.
    NoScopes { why: String }
        "scope-not-supported"
        "this cage's isolation has no scopes: {why}"
        => "Use `--isolation namespace`.";
    /// The shell of this cage has no scopes.
    NoShellScopes
        "scope-not-for-shell"
        "the shell of this cage has no scopes"
        => "Start the cage with `--shell scoped`.";
    /// A scope cannot run in the background.
    ScopeDetached
        "scope-detached"
        "a scope ends with its command, so it cannot run in the background; leave out --scope or -d"
        => "Leave out `--scope` or `-d`.";
    /// Only a shell in the cage can send this request.
    ShellOnly
        "scope-shell-only"
        "only a shell in the cage can send this request"
        => "Leave out `shell`.";
    /// Traffic of a scope would not count toward the network limits of the cage.
    ScopeNotCounted
        "scope-not-counted"
        "traffic of a scope would not count toward the network limits of the cage (network.limits)"
        => "Remove the limits, or run the command in the cage.";
    /// The cage's network was narrowed while it ran, and a scope or child would not know of it.
    NetworkNarrowed
        "scope-network-narrowed"
        "the cage's network was narrowed while it ran, which a scope or child cage would not follow"
        => "Start the cage again with the narrower rules.";
    /// A lease is open in what a scope or child would share with the cage.
    LeaseShared { lease: u64, resource: String }
        "scope-lease-shared"
        "lease {lease} ({resource}) is open in what the scope or child cage would share; revoke it first"
        => "Revoke the lease.";
    /// The scope could not be started.
    ScopeFailed { error: String }
        "scope-failed"
        "cannot start the scope: {error}"
        => "Read the error.";
    /// A resource cannot be given to a scope.
    ScopeLacks { what: String }
        "scope-lacks"
        "{what}"
        => "Start the cage with what the text names.";
    /// The tool call cannot be carried out.
    CallUnknown { error: String }
        "call-unknown"
        "{error}"
        => "Use a tool from the table in docs/concepts/intent.md, or run the command with `ironcage exec`.";
    /// The tool call needs too many resources.
    CallNeedsTooMuch { limit: u64 }
        "call-needs-too-much"
        "the call needs more than {limit} resources that the cage does not have"
        => "Split the call.";
    /// What the tool writes would be deleted with its scope.
    WrittenToScratch
        "call-written-to-scratch"
        "what is written there would be deleted with the call; write in the workspace"
        => "Write in the workspace.";

    /// The policy allows no child cages.
    NoChildren
        "child-not-allowed"
        "this cage's policy allows no child cages; set `children = N` under [ceiling]"
        => "Set `children = N` under `[ceiling]`.";
    /// The isolation of this cage has no child cages.
    ChildrenUnsupported { why: String }
        "child-not-supported"
        "this cage's isolation has no child cages: {why}"
        => "Use `--isolation namespace`.";
    /// As many child cages exist as the policy allows.
    TooManyChildren { limit: u64 }
        "child-too-many"
        "the policy allows {limit} child cages at once, with their own children; one has to end first"
        => "Wait until one has ended.";
    /// The child could open more children than its parent may.
    TooManyGrandchildren { own: u64, limit: u64 }
        "child-too-many-descendants"
        "with its own {own} children there would be more than the {limit} that the policy allows at once"
        => "Lower `children` in the child's policy.";
    /// The cage diverged from what its model announced, so it gets no children.
    ChildAfterDrift
        "child-after-drift"
        "this cage diverged from what its model announced; the user has to review it first"
        => "The user reviews it: `ironcage lease list -f`, `ironcage resume`.";
    /// The child's policy is not valid, or allows more than its parent's.
    ChildPolicy { error: String }
        "child-policy"
        "{error}"
        => "Narrow the child's policy.";
    /// The child cage could not be started.
    ChildFailed { error: String }
        "child-failed"
        "cannot start the child cage: {error}"
        => "Read the error.";
    /// Something on the host prevents the child; the text would show host paths to the agent.
    ChildFailedOnHost
        "child-failed-on-host"
        "something on the host prevents it; the audit log of the cage has the reason"
        => "The user reads `ironcage why`.";

    /// The policy allows no channels.
    NoChannels
        "channel-not-allowed"
        "this cage's policy allows no channels; set `channels = N` under [ceiling]"
        => "Set `channels = N` under `[ceiling]`.";
    /// The cage has as many channels as its policy allows.
    TooManyChannels { limit: u64 }
        "channel-too-many"
        "this cage has the {limit} channels that its policy allows"
        => "Close a channel first.";
    /// A channel of this name exists.
    ChannelExists { channel: String }
        "channel-exists"
        "this cage already has a channel `{channel}`"
        => "Use another name.";
    /// No channel of this name exists, or it has the other direction.
    NoSuchChannel { channel: String }
        "channel-unknown"
        "this cage has no channel `{channel}` in this direction"
        => "Check the name and the direction.";
    /// The operator closed the channel.
    ChannelClosedByOperator
        "channel-closed-by-operator"
        "by the operator"
        => "The operator opens another one.";
    /// The cage at the other end of the channel has ended.
    ChannelPeerGone
        "channel-peer-gone"
        "the other end is gone"
        => "Start the other cage again and open a channel.";
    /// The other end of the channel sent an invalid packet, or too many.
    ChannelPeerInvalid
        "channel-peer-invalid"
        "the other end sent an invalid packet"
        => "Check that both cages run the same version.";
    /// The channel was closed.
    ChannelClosed
        "channel-closed"
        "the channel was closed"
        => "The operator opens another one.";
    /// A model's response, or a part of it, could not be parsed.
    IntentNotRead { error: String }
        "intent-not-read"
        "{error}"
        => "Ask for a lease with `ironcage ask`; no lease was granted from this part of the response.";
    /// Too many announced tool calls are in progress.
    IntentTooManyCalls { limit: u64 }
        "intent-too-many-calls"
        "{limit} tool calls are in progress, which is the limit"
        => "Wait until some of them end.";
    /// A tool call removes the home, the workspace, or a directory around them.
    IntentRemoves { held: String }
        "intent-removes"
        "{held}"
        => "Read the text, which says what protects the files; `ironcage diff` lists what a pending change removes.";
    /// Nobody could be told of a permission request.
    RequestNotTold { how: String, error: String }
        "request-not-told"
        "nobody was told by {how}: {error}"
        => "Fix the program or the address in `[questions]`; `ironcage request list` shows what is pending.";
    /// The message is not of the channel's type.
    MessageType { error: String }
        "channel-message-type"
        "the message is not of the channel's type: {error}"
        => "Send a message of the channel's type.";
    /// The message is too large.
    MessageTooLarge { bytes: u64, limit: u64 }
        "channel-message-too-large"
        "the message has {bytes} bytes, and the channel carries at most {limit}"
        => "Send a smaller message.";
    /// Too many messages in a minute.
    MessageRate { limit: u64 }
        "channel-message-rate"
        "the channel carries {limit} messages a minute; send it later"
        => "Send it later.";
    /// Too many messages are unread.
    MessageQueue { limit: u64 }
        "channel-queue-full"
        "{limit} messages are unread; send it later"
        => "Send it later.";
    /// The other end does not take the message.
    MessageNotTaken
        "channel-not-taken"
        "the other end does not take the message; send it later"
        => "Send it later.";
}
