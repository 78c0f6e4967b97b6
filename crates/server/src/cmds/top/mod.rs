//! `millrace top`: a running server, live in the terminal.
//!
//! | file | does |
//! | --- | --- |
//! | `watch` | asks the server, on a thread of its own |
//! | `view` | the display, as lines of text; keys |
//! | `screen` | the terminal: raw input, another screen, and back |

mod screen;
mod view;
mod watch;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use clap::Args;
use tokio::signal::unix::SignalKind;

use self::screen::Screen;
use self::view::{Sort, View};
use self::watch::Update;
use super::remote::RemoteArgs;

/// Watch a running server: viewers, bit rates, resources in use, lateness of packets
///
/// Asks the server's API, which reveals this to programs on its own machine and to users that
/// manage.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace top\n  millrace top --sort lost\n  \
                        millrace top --server http://boss:secret@tv.example:8080/\n  \
                        millrace top --once --json | jq .figures.bits_per_s\n\n\
                        Keys: q ends; r l a t v sort by rate, lost, age, title, viewer, the same key again turns the order round;\n\
                        arrows and page keys scroll the sessions")]
pub(super) struct TopArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Initial sort key of the sessions
    #[arg(long, value_name = "KEY", default_value = "rate")]
    sort: Sort,
    /// Print the state of the server once, and exit
    #[arg(long)]
    once: bool,
    /// With --once: everything that the server reports, as one JSON document
    #[arg(long, requires = "once")]
    json: bool,
}

pub(super) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let remote = args.remote.named_or_local()?;
    remote.sign_in()?;
    if args.once {
        let (figures, status) = watch::once(&remote)?;
        if args.json {
            super::print_json(&serde_json::json!({ "figures": figures, "status": status }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut view = View::new(remote.place(), args.sort);
        view.apply(Update::of(&figures, &status)?);
        view.all().iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let cancel = super::cancel_on(&signals, screen::leave_at_once)?;
    let mut screen = Screen::enter()?;
    let (to, updates) = mpsc::channel();
    let mut view = View::new(remote.place(), args.sort);
    // It ends with the program: it waits for the server most of the time.
    std::thread::Builder::new().name("watch".into()).spawn(move || watch::run(&remote, &to))?;
    show(&mut screen, &mut view, &updates, &cancel)?;
    Ok(ExitCode::SUCCESS)
}

/// Draws whenever something has changed, until a key or a signal ends it.
fn show(
    screen: &mut Screen,
    view: &mut View,
    updates: &mpsc::Receiver<Update>,
    cancel: &AtomicBool,
) -> anyhow::Result<()> {
    let mut drawn = None;
    while !cancel.load(Ordering::Relaxed) {
        updates.try_iter().for_each(|update| view.apply(update));
        let (width, height) = screen.size();
        let lines = view.lines(width, height);
        if drawn.as_ref() != Some(&lines) {
            screen.draw(&lines)?;
            drawn = Some(lines);
        }
        for key in screen.keys()? {
            if view.press(key) {
                return Ok(());
            }
        }
    }
    Ok(())
}
