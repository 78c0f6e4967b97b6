//! The systemd unit: that of the packages with the paths of here, or a short one for a user's own service.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Its file.
pub(super) const NAME: &str = "millrace.service";

/// Directories of units that packages install.
pub(super) const PACKAGED: [&str; 3] =
    ["/usr/lib/systemd/system", "/lib/systemd/system", "/usr/local/lib/systemd/system"];

/// The unit of the packages.
const SYSTEM_UNIT: &str = include_str!("../../../../../scripts/dist/millrace.service");

/// The command in the unit of the packages.
const PACKAGED_START: &str = "/usr/bin/millrace serve --config /etc/millrace.toml";

/// The directory that systemd makes for the packages' service.
const STATE: &str = "/var/lib/millrace";

/// The parts of a unit that differ.
pub(super) struct ServiceUnit {
    /// Of this machine; else of a user.
    pub(super) is_system: bool,
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    pub(super) store: PathBuf,
    pub(super) user: String,
}

impl ServiceUnit {
    pub(super) fn text(&self) -> anyhow::Result<String> {
        // Variables are replaced in arguments only, not in the program's path.
        let start =
            format!("{} serve --config {}", word(&self.program)?, word(&self.config)?.replace('$', "$$"));
        if !self.is_system {
            return Ok(user_unit(&start));
        }
        let store = match self.store.starts_with(STATE) {
            true => String::new(),
            false => format!("ReadWritePaths={}\n", word(&self.store)?),
        };
        let text = SYSTEM_UNIT
            .replace(PACKAGED_START, &start)
            .replace("/etc/millrace.toml.", &format!("{}.", self.config.display()))
            .replace("User=millrace\n", &format!("User={}\n", self.user))
            // Its main group.
            .replace("Group=millrace\n", "")
            .replace("StateDirectory=millrace\n", &format!("StateDirectory=millrace\n{store}"));
        Ok(text)
    }
}

/// A service of a user. Only root can restrict a service by most of the means of systemd; the server restricts itself.
fn user_unit(start: &str) -> String {
    format!(
        "# Changes to this unit: systemctl --user edit millrace\n\n[Unit]\nDescription=Millrace media-on-demand server\n\
         Documentation=man:millrace-serve(1)\n\n[Service]\nType=notify\nExecStart={start}\n\
         ExecReload=/bin/sh -c \"kill -HUP $MAINPID\"\nTimeoutStartSec=10min\nWatchdogSec=30s\nRestart=on-failure\nRestartSec=2\n\
         # A setting that is wrong stays wrong.\nRestartPreventExitStatus=2\nNoNewPrivileges=yes\nUMask=0027\n\n\
         [Install]\nWantedBy=default.target\n"
    )
}

/// A word of a unit (systemd.unit(5)), with its specifiers escaped. An argument of a command has its `$` doubled as well
/// (systemd.service(5)).
fn word(path: &Path) -> anyhow::Result<String> {
    let text =
        path.to_str().with_context(|| format!("{}: not UTF-8; choose another name", path.display()))?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+@".contains(c));
    anyhow::ensure!(!text.contains('\n'), "{text:?}: has a line end; choose another name");
    Ok(if is_plain { escaped } else { format!("\"{escaped}\"") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(is_system: bool, config: &str, store: &str) -> String {
        let unit = ServiceUnit {
            is_system,
            program: "/opt/millrace/bin/millrace".into(),
            config: config.into(),
            store: store.into(),
            user: "films".to_owned(),
        };
        unit.text().unwrap()
    }

    #[test]
    fn unit_of_the_machine_is_that_of_the_packages_with_other_paths() {
        let text = unit(true, "/etc/millrace.toml", "/srv/store");
        for line in [
            "ExecStart=/opt/millrace/bin/millrace serve --config /etc/millrace.toml",
            "User=films",
            "ReadWritePaths=/srv/store",
            "ProtectSystem=strict",
            "WantedBy=multi-user.target",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(!text.contains("/usr/bin/millrace") && !text.contains("Group="), "{text}");
        assert!(!unit(true, "/etc/millrace.toml", "/var/lib/millrace/store").contains("\nReadWritePaths="));
    }

    #[test]
    fn unit_of_a_user_starts_with_its_session() {
        let text = unit(false, "/home/a b/100%.toml", "/x");
        assert!(
            text.contains("ExecStart=/opt/millrace/bin/millrace serve --config \"/home/a b/100%%.toml\"\n"),
            "{text}"
        );
        assert!(text.ends_with("WantedBy=default.target\n") && !text.contains("User="), "{text}");
    }

    #[test]
    fn name_that_no_unit_can_have_is_refused() {
        assert!(word(Path::new("/a\nb")).unwrap_err().to_string().contains("line end"));
        assert_eq!(word(Path::new("/a$b\"c")).unwrap(), "\"/a$b\\\"c\"");
    }

    #[test]
    fn dollar_signs_are_doubled_in_arguments_only() {
        let text = unit(true, "/etc/a$b.toml", "/srv/a$b");
        assert!(text.contains(" serve --config \"/etc/a$$b.toml\"\n"), "{text}");
        assert!(text.contains("ReadWritePaths=\"/srv/a$b\"\n"), "{text}");
    }
}
