//! The commands.

use crate::progress::Progress;
use crate::{image_error, pull};
use ironcage_command::error::CliError;
use ironcage_command::image::Action;
use ironcage_command::json;
use ironcage_images::{Image, Limits, Pruned, Reference, Store, commit, export, load};
use ironcage_model::Printable;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

pub(crate) fn run(store: &Store, workspace: Option<&Path>, action: Action) -> Result<(), CliError> {
    match action {
        Action::Pull {
            image,
            insecure,
            quiet,
        } => {
            let image = pull::pull(store, &reference(&image)?, insecure, quiet)?;
            added(&image, quiet)
        }
        Action::Load { path, name } => {
            let name = name.as_deref().map(reference).transpose()?;
            let before = store.images().map_err(|error| image_error(&error))?;
            let progress = Progress::new(false);
            let unpacking = |done, of| progress.unpacking(done, of);
            let images = load(store, &path, name.as_ref(), Limits::default(), &unpacking);
            drop(progress);
            let images = images.map_err(|error| image_error(&error))?;
            images.iter().try_for_each(|image| {
                taken_over(&before, image);
                added(image, false)
            })
        }
        Action::List { json, shared } => match shared {
            true => list(&Store::shared().map_err(|error| image_error(&error))?, json),
            false => list(store, json),
        },
        Action::Share { images } => {
            let shared = Store::open_shared().map_err(|error| image_error(&error))?;
            images.iter().try_for_each(|name| {
                let image = shared.share(store, &find(store, name)?);
                let image = image.map_err(|error| image_error(&error))?;
                print(&image.digest.to_string())
            })
        }
        Action::Unshare { images } => {
            let shared = Store::open_shared().map_err(|error| image_error(&error))?;
            images.iter().try_for_each(|name| {
                let removed = shared.unshare(name).map_err(|error| image_error(&error))?;
                print(&told(&removed))
            })
        }
        Action::Show { image, json } => show(&find(store, &image)?, json),
        Action::Rm { images } => {
            for name in images {
                let removed = store.remove(&name).map_err(|error| image_error(&error))?;
                match removed.images.is_empty() {
                    true => print(&format!("removed the name {name}"))?,
                    false => print(&told(&removed))?,
                }
            }
            Ok(())
        }
        Action::Prune { all } => {
            let pruned = store.prune(all).map_err(|error| image_error(&error))?;
            print(&told(&pruned))
        }
        Action::Commit { name } => {
            let workspace = workspace.ok_or_else(|| {
                CliError::new("cannot commit: no workspace was given")
                    .hint("run `ironcage image commit` in the workspace")
            })?;
            let system = store.writable_system(workspace);
            let image = commit(store, &system, &reference(&name)?);
            added(&image.map_err(|error| image_error(&error))?, false)
        }
        Action::Export { image, output } => write_archive(store, &image, output.as_deref()),
    }
}

fn reference(text: &str) -> Result<Reference, CliError> {
    text.parse::<Reference>()
        .map_err(|error| image_error(&error))
}

fn find(store: &Store, name: &str) -> Result<Image, CliError> {
    store.image(name).map_err(|error| image_error(&error))
}

pub(crate) fn print(text: &str) -> Result<(), CliError> {
    writeln!(anstream::stdout(), "{text}")
        .map_err(|error| CliError::new(format!("cannot write to standard output: {error}")))
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = json::pretty(value)
        .map_err(|error| CliError::new(format!("cannot write JSON: {error}")))?;
    print(&text)
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Says which names mean another image than before. An archive says itself which names it takes.
fn taken_over(before: &[Image], image: &Image) {
    for name in &image.names {
        let other = before.iter().find(|other| other.names.contains(name));
        if let Some(other) = other.filter(|other| other.digest != image.digest) {
            anstream::eprintln!(
                "  note: {} was {} before; `ironcage image prune` removes that image if it has no other name",
                familiar(name),
                other.digest.short()
            );
        }
    }
}

/// Says what was added, and what of it was dropped.
fn added(image: &Image, quiet: bool) -> Result<(), CliError> {
    if quiet {
        return Ok(());
    }
    let mut names: Vec<String> = image.names.iter().map(|name| familiar(name)).collect();
    if names.is_empty() {
        names.push(image.name());
    }
    // All of them: an archive says itself which names it takes.
    for name in names {
        print(&format!(
            "{name}  {}  {} layers, {}",
            image.digest.short(),
            image.layers.len(),
            size(image.size)
        ))?;
    }
    let dropped = dropped(image);
    if !dropped.is_empty() {
        anstream::eprintln!("  note: not unpacked: {}", dropped.join(", "));
    }
    Ok(())
}

fn dropped(image: &Image) -> Vec<String> {
    let notes = &image.notes;
    [
        (notes.devices_skipped, "device nodes"),
        (notes.set_id_cleared, "set-user-ID bits"),
        (notes.owners_dropped, "owners other than root"),
        (notes.attributes_dropped, "extended attributes"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

pub(crate) fn told(pruned: &Pruned) -> String {
    let images = match pruned.images.as_slice() {
        [] => "removed no images".to_owned(),
        some => format!("removed {}", some.join(", ")),
    };
    format!(
        "{images}; {} layers and {} of downloads",
        pruned.layers,
        size(pruned.blob_bytes)
    )
}

/// An image as programs read it.
#[derive(Serialize)]
struct Shown<'a> {
    names: &'a [String],
    #[serde(flatten)]
    image: &'a Image,
}

fn list(store: &Store, as_json: bool) -> Result<(), CliError> {
    let images = store.images().map_err(|error| image_error(&error))?;
    if as_json {
        let shown: Vec<Shown<'_>> = images
            .iter()
            .map(|image| Shown {
                names: &image.names,
                image,
            })
            .collect();
        return print_json(&shown);
    }
    if images.is_empty() {
        anstream::eprintln!("no images; `ironcage image pull NAME` fetches one");
        return Ok(());
    }
    let mut rows = vec![["IMAGE".to_owned(), "DIGEST".to_owned(), "SIZE".to_owned()]];
    for image in &images {
        let names = image.names.iter().map(|name| familiar(name));
        let names: Vec<String> = match image.names.is_empty() {
            true => vec!["(no name)".to_owned()],
            false => names.collect(),
        };
        for name in names {
            rows.push([name, image.digest.short().to_owned(), size(image.size)]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [name, digest, size] in &rows {
        print(&format!("{name:first$}  {digest:second$}  {size}"))?;
    }
    Ok(())
}

fn familiar(name: &str) -> String {
    name.parse::<Reference>()
        .map_or_else(|_| name.to_owned(), |name| name.familiar())
}

fn show(image: &Image, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return print_json(&Shown {
            names: &image.names,
            image,
        });
    }
    let run = &image.run;
    let names: Vec<String> = image.names.iter().map(|name| familiar(name)).collect();
    let mut lines = vec![
        ("names", names.join(", ")),
        ("digest", image.digest.to_string()),
        ("created", image.created.clone().unwrap_or_default()),
        ("size", size(image.size)),
        ("entrypoint", run.entrypoint.join(" ")),
        ("command", run.cmd.join(" ")),
        ("directory", run.working_dir.clone()),
        ("user", run.user.clone()),
        ("dropped", dropped(image).join(", ")),
    ];
    lines.extend(run.env.iter().map(|variable| ("env", variable.clone())));
    lines.extend(
        image
            .layers
            .iter()
            .map(|layer| ("layer", layer.to_string())),
    );
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        // Much of it is the image maker's text.
        print(&format!("{name:<11} {}", Printable::new(&value)))?;
    }
    Ok(())
}

fn write_archive(store: &Store, name: &str, output: Option<&Path>) -> Result<(), CliError> {
    let image = find(store, name)?;
    let Some(path) = output else {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            return Err(CliError::new("cannot write an archive to a terminal")
                .hint("use -o FILE, or redirect the output"));
        }
        return export(store, &image, stdout.lock()).map_err(|error| image_error(&error));
    };
    let cannot =
        |error: io::Error| CliError::new(format!("cannot write {}: {error}", path.display()));
    // A rename would replace a device by a file.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(cannot(io::Error::other("not a regular file"))
            .hint("leave out -o and redirect the output"));
    }
    // Under another name until it is complete, so that a failure leaves no half archive. Who else
    // can write there may have put a link at that name.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".partial-{}", std::process::id()));
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .map_err(|error| {
            let temporary = Printable::new(&temporary);
            CliError::new(format!("cannot create {temporary}: {error}"))
        })?;
    let written = export(store, &image, io::BufWriter::new(&file));
    match written {
        Ok(()) => {
            file.sync_all().map_err(cannot)?;
            fs::rename(&temporary, path).map_err(cannot)
        }
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(image_error(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1500, "1.5 kB"),
            (29_100_000, "29.1 MB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
