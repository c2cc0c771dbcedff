//! The `ironcage-serve` program: cages by HTTP, with a native API and E2B's.
//!
//! `ironcage serve` executes it. It is apart so that the program that starts cages has no HTTP server
//! and no async runtime in it.
#![forbid(unsafe_code)]

mod activation;
mod answers;
mod api;
mod clock;
mod command_line;
mod daemon;
mod dashboard;
mod e2b;
mod engine;
mod error;
mod event_log;
mod header_time;
mod keys;
mod limits;
mod listen;
mod log_places;
mod metrics;
mod program;
mod projects;
mod router;
mod signals;
mod store;
mod tls;
mod traffic;
mod usage;
mod webhooks;

fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// `UPDATE=1 cargo test -p ironcage-serve` writes it again.
    #[test]
    fn the_description_of_the_api_is_the_one_that_is_checked_in() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/openapi.json");
        let text = crate::api::description().unwrap();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "sdk/openapi.json is out of date: UPDATE=1 cargo test -p ironcage-serve"
        );
    }
}
