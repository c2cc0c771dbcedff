//! `ironcage setup microvm`: makes the guest of microVMs, as the user.

use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_microvm::kvm;
use ironcage_microvm::setup::{KernelSource, SetupError, manifest, qemu, set_up};
use ironcage_model::Printable;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kernel of the guest, in the format bzImage [default: an installed or downloaded one]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    kernel: Option<PathBuf>,
    /// Directory with the modules of that kernel [default: lib/modules beside its directory, or
    /// the system's]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, requires = "kernel")]
    modules: Option<PathBuf>,
    /// Use an installed kernel, and download nothing
    #[arg(long)]
    offline: bool,
    /// Show the guest that is set up, and change nothing
    #[arg(long, conflicts_with_all = ["kernel", "modules", "offline"])]
    show: bool,
}

fn failed(error: &SetupError) -> CliError {
    CliError::from_error(error).hint(error.hint())
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let directory = paths::guest(&paths::home(&SystemFiles::default())?);
    // Asked first: without it there is no use in the rest.
    let vmm = qemu().map_err(|error| failed(&error))?;
    let made = match args.show {
        true => manifest(&directory),
        false => set_up(
            &directory,
            &KernelSource {
                kernel: args.kernel.clone(),
                modules: args.modules.clone(),
                offline: args.offline,
            },
        ),
    };
    let made = made.map_err(|error| failed(&error))?;
    let speed = kvm::examine(&directory);
    anstream::println!("guest      {}", Printable::new(&directory));
    anstream::println!("vmm        {}", Printable::new(&vmm));
    anstream::println!(
        "runs by    {}",
        Printable::new(&kvm::acceleration(&directory).to_string())
    );
    anstream::println!("kvm        {}", Printable::new(&speed.to_string()));
    anstream::println!(
        "kernel     {} ({})",
        Printable::new(&made.version),
        Printable::new(&made.source)
    );
    anstream::println!("           sha256:{}", Printable::new(&made.kernel));
    anstream::println!("initramfs  sha256:{}", Printable::new(&made.initramfs));
    anstream::println!("modules    {}", Printable::new(&made.modules.join(" ")));
    Ok(0)
}
