//! `pg_queue_web`: a dashboard for the queues of some databases. It is one program beside the server.
//!
//! The modules, each after those that it needs:
//!
//! * [`log`]: what the program prints
//! * [`error`]: the errors, and how they are shown
//! * [`options`]: the command line
//! * [`share`]: limits what one viewer may hold of a resource
//! * [`serve`]: the connections
//! * [`fields`]: reads bodies
//! * [`database`]: runs statements as the viewer
//! * [`viewer`]: finds the viewer's role
//! * [`login`]: checks passwords
//! * [`guard`]: refuses requests of other sites, and sets the headers
//! * [`cache`]: asks once for all equal requests
//! * [`poll`]: looks once a second for all browsers
//! * [`look`]: the pages' queries
//! * [`filter`]: their search conditions
//! * [`act`]: the verbs
//! * [`audit`]: a record of what the viewers did
//! * [`assets`]: the page itself
//! * [`once`]: prints the overview in a terminal
//! * [`routes`]: combines all of these
//!
//! Invariants: each statement that a viewer causes runs in its own transaction, as the viewer's role, with a time
//! limit. A viewer's text never becomes SQL. What jobs contain is text in the page, never markup. Whatever a viewer or
//! a stranger can make grow, or can hold, is bounded for each of them and in total.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod act;
mod assets;
mod audit;
mod cache;
mod database;
mod error;
mod fields;
mod filter;
mod guard;
mod log;
mod login;
mod look;
mod once;
mod options;
mod poll;
mod routes;
mod serve;
mod share;
mod tls;
mod viewer;

use std::process::ExitCode;

use crate::options::{Listen, Options};

fn main() -> ExitCode {
    let options = match options::parse(std::env::args_os()) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            log::say(format_args!("{why}"));
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.map_err(|e| e.to_string()).and_then(|runtime| runtime.block_on(run(options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log::say(format_args!("{why}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), String> {
    if options.once {
        return once::print(&options).await;
    }
    let listen = options.listen.clone();
    let site = routes::Site::new(options)?;
    let router = routes::router(site.clone());
    let until = site.polls.until_stopped();
    let stop = site.clone();
    tokio::spawn(async move {
        terminated().await;
        stop.polls.stop();
    });
    let served = async {
        match &listen {
            Listen::Tcp(address) => {
                let listener = tokio::net::TcpListener::bind(address).await;
                let listener = listener.map_err(|e| format!("cannot listen at {address}: {e}"))?;
                let address = listener.local_addr().map_err(|e| e.to_string())?;
                log::say(format_args!("listening on http://{address}{}/", site.options.prefix));
                serve::serve(listener, router, until.clone()).await;
            }
            Listen::Unix(path) => {
                let listener = unix_listener(path).map_err(|e| format!("cannot listen at {}: {e}", path.display()))?;
                log::say(format_args!("listening on {}", path.display()));
                serve::serve(listener, router, until.clone()).await;
            }
        }
        Ok(())
    };
    let patience = async {
        until.clone().await;
        // A browser that does not read its last answer does not delay the exit.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        Ok(())
    };
    tokio::select! { done = served => done, done = patience => done }
}

/// Creates the socket again if the file of an ended program is in its place. The program's user and group may connect.
fn unix_listener(path: &std::path::Path) -> std::io::Result<tokio::net::UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let is_left = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path).is_err();
    if is_left {
        std::fs::remove_file(path)?;
    }
    let listener = tokio::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Returns at SIGTERM or SIGINT.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
