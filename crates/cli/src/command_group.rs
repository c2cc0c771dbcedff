//! Groups of commands, such as `ironcage change list` and `ironcage change apply`.

/// The subcommands of a group: each is a module with `Args`, whose comment is the help, and `run`.
/// A `ref` is for a `run` that only borrows its arguments.
macro_rules! command_group {
    ($($name:ident => $module:ident $($by:ident)?,)+) => {
        #[derive(Debug, clap::Subcommand)]
        enum Command {
            $($name($module::Args),)+
        }

        pub(crate) fn run(args: Args) -> crate::error::CommandResult {
            match args.command {
                $(Command::$name($($by)? args) => $module::run(args),)+
            }
        }
    };
}

pub(crate) use command_group;
