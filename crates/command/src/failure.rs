//! Codes of failures that are neither a denial nor a failed start: programs and tests branch on them.
//!
//! Denials and failed starts have codes of their own (`ironcage_model::Reason`, `StartCode`).

use ironcage_model::ReasonEntry;

macro_rules! failures {
    ($($name:ident $code:literal $meaning:literal => $remedy:literal;)*) => {
        /// Why a command failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum FailureCode {
            $($name,)*
        }

        impl FailureCode {
            /// Every code with its meaning, for the reference.
            pub const TABLE: &'static [ReasonEntry] = &[
                $(ReasonEntry { code: $code, meaning: $meaning, remedy: $remedy },)*
            ];

            /// The stable code.
            pub fn code(self) -> &'static str {
                match self {
                    $(FailureCode::$name => $code,)*
                }
            }
        }
    };
}

failures! {
    NoSuchCage "no-such-cage"
        "No cage has the ID or name." => "`ironcage ps -a` lists cages.";
    CageAmbiguous "cage-ambiguous"
        "Several cages have IDs that begin like this." => "Type more of the ID.";
    CageNotRunning "cage-not-running"
        "The cage has ended." => "`ironcage audit show ID` shows what it did.";
    CageRunning "cage-running"
        "The cage runs, and the command needs an ended one." => "`ironcage stop ID`.";
    CageKilled "cage-killed"
        "The supervisor of the cage was killed, so nobody knows how its command ended." => "`ironcage audit show ID` shows what it did.";
    OutputNotKept "output-not-kept"
        "Ironcage keeps no output of this cage." => "Start it in the background: `ironcage run -d`.";
    NoPendingChange "no-pending-change"
        "The workspace has no pending change." => "`ironcage change list` lists the changes of all workspaces.";
    NoSuchChange "no-such-change"
        "No change has this ID." => "`ironcage change list` lists the changes of all workspaces.";
    NotInChange "not-in-change"
        "The change does not have the path." => "`ironcage diff --name-only` lists its paths.";
    ChangeInUse "change-in-use"
        "A cage works on the change." => "Stop the cage, then run the command again.";
    ChangeInMemory "change-in-memory"
        "The change is in the memory of its cage." => "Run the command again when the cage has ended.";
    ChangeNotReviewed "change-not-reviewed"
        "The change is not the one that was reviewed." => "Review it again: `ironcage diff`.";
    ConfirmationNeeded "confirmation-needed"
        "The command asks for confirmation, and standard input is not a terminal." => "Use the flag that the error names, for example `--yes`.";
    FileExists "file-exists"
        "The file that the command would write exists." => "Name another file, or use the flag that the error names.";
    ImageInUse "image-in-use"
        "A running cage or a template uses the image." => "Stop the cage, or remove the template.";
    NothingToCommit "nothing-to-commit"
        "No cage of this workspace changed the system of its image." => "Start one with `--writable-image`.";
    NoSuchTemplate "no-such-template"
        "No template has this name." => "`ironcage template list` lists templates.";
    SharedStoreIsRoots "shared-store-is-roots"
        "Only root can change the store that all users share." => "Run the command as root.";
    NotRoot "not-root"
        "The command changes this host and needs root." => "Run it with `sudo`.";
    NotInCage "not-in-a-cage"
        "The command works only inside a cage." => "On the host, use `ironcage grant`.";
    InCage "in-a-cage"
        "The command starts cages and does not work inside one." => "Use `ironcage child`.";
}

/// The entry of a code.
pub fn find_failure(code: &str) -> Option<&'static ReasonEntry> {
    FailureCode::TABLE.iter().find(|entry| entry.code == code)
}
