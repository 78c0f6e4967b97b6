//! What became of the settings when a running server read them again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Reload")]
pub struct ReloadReport {
    /// When the settings were read; `null`: not since the start.
    pub at_unix_s: Option<u64>,
    /// Settings with another value than the server runs with. One that needs a restart is reported at each reload until then.
    pub changes: Vec<SettingChange>,
    /// Faults in the settings, with the file and the line of each. If there are any, no setting was changed.
    pub faults: Vec<String>,
}

/// A setting that has another value than the one that the server ran with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingChange {
    /// The setting, as `millrace config list` names it.
    pub name: String,
    /// Its value before the reload.
    pub before: String,
    /// The value that was read.
    pub now: String,
    /// Whether the new value counts.
    pub effect: ChangeEffect,
    /// The value that counts until the restart; `null`: the new one counts.
    pub until_restart: Option<String>,
}

/// Whether a changed setting counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeEffect {
    /// From now on.
    InEffect,
    /// When the server is started again.
    NeedsRestart,
}
