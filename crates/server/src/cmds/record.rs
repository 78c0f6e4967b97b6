//! `millrace record`: records a live title of a running server.

use std::process::ExitCode;

use clap::Args;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_web::RecordingWish;
use serde::Deserialize;

use super::remote::RemoteArgs;
use super::title_names::is_name;

/// Record a live title of a running server; the recording becomes a title of its store
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace record news --for 30m --title 'News at eight'\n  millrace record news\n  \
                        millrace record news --stop\n  \
                        millrace record --server http://tv.example:8080/ news --for 2h\n\n\
                        The command returns at once; millrace live shows what is recorded. For regular times start it from cron or a systemd \
                        timer."
)]
pub(super) struct RecordArgs {
    /// Name of the live title as shown by `millrace live`
    #[arg(value_name = "NAME")]
    name: String,
    /// How long to record [default: until it is stopped, or the live title ends]
    #[arg(long = "for", value_name = "TIME")]
    length: Option<HumanDuration>,
    /// Display name of the title that it becomes [default: NAME, with date and time]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// End the recording of NAME
    #[arg(long, conflicts_with_all = ["length", "title"])]
    stop: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print the answer of the API, as JSON
    #[arg(long)]
    json: bool,
}

/// A recording as the API has it.
#[derive(Deserialize)]
struct RemoteRecording {
    title: String,
    bytes: u64,
}

pub(super) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(is_name(&args.name), "{}: no such live title; see: millrace live", args.name);
    let for_s = args.length.map(|length| length.0.as_secs());
    if for_s == Some(0) {
        return Err(super::usage(anyhow::anyhow!(
            "--for: less than a second; write how long to record, as in 30m"
        )));
    }
    let remote = args.remote.named_or_local()?;
    remote.sign_in()?;
    let path = format!("live/{}/recording", args.name);
    let answer: serde_json::Value = if args.stop {
        remote.send("DELETE", &path, None)?
    } else {
        let wish = RecordingWish { title: args.title.clone(), for_s };
        remote.send("PUT", &path, Some(&serde_json::to_value(wish)?))?
    };
    if args.json {
        super::print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let RemoteRecording { title, bytes } = RemoteRecording::deserialize(&answer)?;
    let (title, bytes) = (super::terminal::name(&title), ByteLen(bytes));
    if args.stop {
        println!("{title}: {bytes} recorded; it is a title within moments: millrace ls");
    } else {
        println!(
            "{title}: recording begins with the next key picture; end it with: millrace record {} --stop",
            args.name
        );
    }
    Ok(ExitCode::SUCCESS)
}
