//! The arguments of `cargo xtask interop`.

use std::path::PathBuf;

pub(super) const HELP: &str = "\
usage: cargo xtask interop [OPTIONS]

Plays films through the millrace program with real players and compares what arrives.

  --long            more films by VLC and TCP, bigger films, blocked UDP, long pauses too (the short form takes about 4 minutes)
  --list            name the checks and end
  --only TEXT       only checks with TEXT in their name; may be given more than once
  --jobs N          checks at a time [default: 6]
  --millrace FILE   the program [default: debug/millrace in cargo's target folder]
  --json FILE       write the verdicts and figures as JSON
  --pictures DIR    write two pictures of the page, for the documents
  --keep            keep films, store and logs even if all is well
";

/// Options of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InteropOptions {
    pub(super) long: bool,
    pub(super) list: bool,
    pub(super) only: Vec<String>,
    pub(super) jobs: usize,
    pub(super) millrace: Option<PathBuf>,
    pub(super) json: Option<PathBuf>,
    pub(super) pictures: Option<PathBuf>,
    pub(super) keep: bool,
}

impl InteropOptions {
    /// `None` if help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            long: false,
            list: false,
            only: Vec::new(),
            jobs: 6,
            millrace: None,
            json: None,
            pictures: None,
            keep: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "-h" | "--help" => return Ok(None),
                "--long" => options.long = true,
                "--list" => options.list = true,
                "--keep" => options.keep = true,
                "--only" => options.only.push(value()?),
                "--millrace" => options.millrace = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--pictures" => options.pictures = Some(value()?.into()),
                "--jobs" => {
                    let jobs = value()?.parse().ok().filter(|jobs| (1..=64).contains(jobs));
                    options.jobs = jobs.ok_or("--jobs needs a whole number from 1 to 64")?;
                }
                _ => return Err(format!("unknown option '{arg}'\n\n{HELP}")),
            }
        }
        Ok(Some(options))
    }

    pub(super) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<InteropOptions>, String> {
        InteropOptions::parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read() {
        let options =
            parse(&["--long", "--only", "gst", "--jobs", "2", "--json", "x.json"]).unwrap().unwrap();
        assert!(options.long && !options.keep && !options.list);
        assert_eq!((options.jobs, options.json), (2, Some("x.json".into())));
        assert_eq!(parse(&["--help", "--long"]), Ok(None));
    }

    #[test]
    fn checks_are_chosen_by_name() {
        let options = parse(&["--only", "gst/", "--only", "seek"]).unwrap().unwrap();
        assert!(options.wants("loop/gst/whole") && options.wants("loop/ffmpeg/seek"));
        assert!(!options.wants("loop/ffmpeg/whole"));
        assert!(parse(&[]).unwrap().unwrap().wants("anything"));
    }

    #[test]
    fn wrong_options_are_named() {
        for (args, word) in
            [(vec!["--fast"], "'--fast'"), (vec!["--only"], "--only"), (vec!["--jobs", "0"], "64")]
        {
            assert!(parse(&args).unwrap_err().contains(word), "{args:?}");
        }
    }
}
