//! The files in which the AWS programs keep credentials and settings: `~/.aws/credentials` and `~/.aws/config`.

use std::fmt;

/// Credentials and settings of a profile.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProfileValues {
    /// `aws_access_key_id`
    pub key_id: Option<String>,
    /// `aws_secret_access_key`
    pub secret: Option<String>,
    /// `aws_session_token`, as `AWS_SESSION_TOKEN`
    pub token: Option<String>,
    /// `region`
    pub region: Option<String>,
    /// `endpoint_url`
    pub endpoint: Option<String>,
}

impl fmt::Debug for ProfileValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = |value: &Option<String>| value.is_some();
        f.debug_struct("ProfileValues")
            .field("has_key", &(is_set(&self.key_id) && is_set(&self.secret)))
            .field("has_token", &is_set(&self.token))
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

/// Reads a profile; one of the file of settings is called `[profile NAME]` there. Unknown lines are skipped, as the AWS programs do. Values of
/// later sections of the same name count.
pub fn parse_profile(text: &str, name: &str) -> ProfileValues {
    let mut values = ProfileValues::default();
    let mut is_wanted = false;
    for line in text.lines() {
        // A line that begins with a blank belongs to a nested table.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if let Some(section) =
            line.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(s, _)| s.trim())
        {
            let bare = section.strip_prefix("profile").filter(|rest| rest.starts_with([' ', '\t']));
            is_wanted = bare.unwrap_or(section).trim().trim_matches(['"', '\'']) == name;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| is_wanted && !is_nested) else { continue };
        // Comments begin a line, or follow a blank.
        let value = value.split_once(" #").map_or(value, |(value, _)| value).trim();
        let field = match key.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => &mut values.key_id,
            "aws_secret_access_key" => &mut values.secret,
            "aws_session_token" => &mut values.token,
            "region" => &mut values.region,
            "endpoint_url" => &mut values.endpoint,
            _ => continue,
        };
        *field = Some(value.to_owned()).filter(|value| !value.is_empty());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::parse_profile;

    const FILE: &str = "# keys\n[default]\naws_access_key_id = AKIA1\naws_secret_access_key=s3cr=t # mine\n\n\
                        [profile hotel]\nregion = eu-north-1\ns3 =\n  region = nested\nendpoint_url = http://127.0.0.1:9\n\
                        [hotel]\naws_access_key_id=AKIA2\naws_session_token = t\n";

    #[test]
    fn profile_values_are_those_of_the_named_section() {
        let default = parse_profile(FILE, "default");
        assert_eq!((default.key_id.as_deref(), default.secret.as_deref()), (Some("AKIA1"), Some("s3cr=t")));
        assert_eq!(default.region, None);
        let hotel = parse_profile(FILE, "hotel");
        assert_eq!((hotel.key_id.as_deref(), hotel.secret), (Some("AKIA2"), None));
        assert_eq!((hotel.region.as_deref(), hotel.token.as_deref()), (Some("eu-north-1"), Some("t")));
        assert_eq!(parse_profile(FILE, "other"), super::ProfileValues::default());
    }

    #[test]
    fn debug_of_profile_shows_no_secret() {
        let shown = format!("{:?}", parse_profile(FILE, "default"));
        assert!(shown.contains("has_key: true") && !shown.contains("s3cr"), "{shown}");
    }
}
