//! Titles that a command line names, with patterns.

/// Whether a title can have this name. Any other character would change the address.
pub(super) fn is_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@'))
}

/// Whether this stands for several names.
fn is_pattern(wanted: &str) -> bool {
    wanted.contains(['*', '?'])
}

/// Returns whether a title matches the request: its name, its id, or a pattern of names in which
/// `*` stands for any characters and `?` for one.
pub(super) fn fits(wanted: &str, name: &str, id: &str) -> bool {
    match is_pattern(wanted) {
        true => millrace_rights::fits(wanted, name),
        false => wanted == name || wanted == id,
    }
}

/// The names that are wanted, in their order and each once, with those of `all` in place of each pattern. A pattern that none
/// of them fits stays as it is: there is no such title.
pub(super) fn expanded(
    wanted: &[String],
    all: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Vec<String>> {
    if !wanted.iter().any(|wanted| is_pattern(wanted)) {
        return Ok(wanted.to_vec());
    }
    let all = all()?;
    let mut names = Vec::<String>::new();
    for wanted in wanted {
        let fit: Vec<&String> =
            all.iter().filter(|name| is_pattern(wanted) && fits(wanted, name, "")).collect();
        let these = if fit.is_empty() { vec![wanted] } else { fit };
        for name in these {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wanted: &[&str]) -> Vec<String> {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        expanded(&wanted, || Ok(["a1", "a2", "b"].map(str::to_owned).to_vec())).unwrap()
    }

    #[test]
    fn pattern_becomes_the_names_that_fit_once_each() {
        assert_eq!(of(&["b", "a*", "?", "a1"]), ["b", "a1", "a2"]);
        assert_eq!(of(&["c*", "none"]), ["c*", "none"], "what there is not stays, to be complained of");
    }

    #[test]
    fn name_alone_asks_for_no_list() {
        let wanted = ["film".to_owned()];
        assert_eq!(expanded(&wanted, || anyhow::bail!("asked")).unwrap(), wanted);
    }

    #[test]
    fn title_is_known_by_name_id_or_pattern() {
        let id = "0123456789abcdef0123456789abcdef";
        assert!(["film", "f*", "f??m", id].iter().all(|wanted| fits(wanted, "film", id)));
        assert!(["films", "0123*", ""].iter().all(|wanted| !fits(wanted, "film", id)));
    }
}
