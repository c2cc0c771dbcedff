//! `ironcage setup microvm`: makes the guest of microVMs, as the user.

use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_microvm::kvm;
use ironcage_microvm::setup::{
    KernelSource, Qemu, SetupError, find, manifest, set_up, unpack, warm,
};
use ironcage_model::Printable;
use ironcage_policy::Amount;
use std::path::PathBuf;

/// The least memory that a guest starts with.
const LEAST: u64 = 192 << 20;

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
    /// Unpack the QEMU of Debian's backports below the state directory, and use it
    ///
    /// Debian 12 installs QEMU 7.2, which cannot make templates. Nothing of the system changes.
    #[arg(long, conflicts_with = "offline")]
    qemu: bool,
    /// Make templates, from which guests are restored instead of booted (needs QEMU 10)
    #[arg(long)]
    warm: bool,
    /// Memory of the templates' guests; a cage needs 160 MiB more
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "warm")]
    memory: Amount,
    /// Show the guest that is set up, and change nothing
    #[arg(long, conflicts_with_all = ["kernel", "modules", "offline", "qemu", "warm"])]
    show: bool,
}

fn failed(error: &SetupError) -> CliError {
    CliError::from_error(error).hint(error.hint())
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let directory = paths::guest(&paths::home(&SystemFiles::default())?);
    // Asked first: without it there is no use in the rest.
    Qemu::find(&directory).map_err(|error| failed(&error))?;
    if args.qemu {
        unpack(&directory).map_err(|error| failed(&error))?;
    }
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
    if args.warm {
        warm(&directory, args.memory()?).map_err(|error| failed(&error))?;
    }
    let guest = find(&directory).map_err(|error| failed(&error))?;
    anstream::println!("guest      {}", Printable::new(&directory));
    anstream::println!("vmm        {}", Printable::new(&guest.qemu));
    anstream::println!(
        "runs by    {}",
        Printable::new(&guest.acceleration.to_string())
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
    for template in &guest.templates {
        let network = match template.network {
            true => "with a network",
            false => "without a network",
        };
        anstream::println!("template   {} MiB, {network}", template.memory);
        anstream::println!("           sha256:{}", Printable::new(&template.digest));
    }
    Ok(0)
}

impl Args {
    /// The memory of templates in MiB.
    fn memory(&self) -> Result<u64, CliError> {
        match self.memory {
            Amount::Bytes(bytes) if bytes >= LEAST => Ok(bytes >> 20),
            _ => Err(CliError::new(
                "cannot make a template: --memory is a size of at least 192 MiB".to_owned(),
            )),
        }
    }
}
