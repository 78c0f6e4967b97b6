//! The decision: which client may do which action, from where. It has no I/O and no protocol; the
//! protocol front ends only translate it.

use crate::known::User;
use crate::link::SignedLink;

/// The requested action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedAction<'a> {
    /// An action that reveals nothing: whether the server is alive, the supported methods.
    Nothing,
    /// Hear whether its credentials are right, whatever else needs any.
    SignIn,
    /// See which titles there are.
    List,
    /// Watch this title, or see its properties.
    Watch(&'a str),
    /// See who else watches, and figures of the whole server.
    SeeOthers,
    /// Change something that others see.
    Change,
    /// Add a title.
    Upload,
}

/// Origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    /// A program of this machine, for itself.
    Here,
    /// Anywhere else, or a proxy on this machine for a client there.
    Elsewhere,
}

/// The requester.
#[derive(Clone, Copy, Debug)]
pub enum Who<'a> {
    /// No identity was given, or it is not known.
    Nobody,
    /// An authenticated user.
    User(&'a User),
    /// The holder of a valid signed link.
    Link(&'a SignedLink),
}

/// Viewing access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watching {
    /// Whoever reaches the addresses that are listened to.
    #[default]
    Open,
    /// Users with a grant, and signed links.
    ByRights,
}

/// Whether programs on this machine need no credentials. A relay on the machine that adds nothing
/// to requests (`ssh -R`, a TCP proxy) looks like one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrustHere {
    /// They need none until the first user may manage the server, because until then there is no
    /// other way to manage it.
    #[default]
    UntilManaged,
    /// They never need credentials.
    Always,
    /// They need credentials like all others.
    Never,
}

/// The operator's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Viewing access.
    pub watching: Watching,
    /// Whether programs of this machine may change things and see others without credentials.
    pub trust_here: TrustHere,
    /// Whether there are users. Filled in from the known users, like the rest.
    pub has_users: bool,
    /// Whether there is a user who manages.
    pub has_managers: bool,
    /// Whether there is a user that may upload.
    pub has_uploaders: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            watching: Watching::Open,
            trust_here: TrustHere::default(),
            has_users: false,
            has_managers: false,
            has_uploaders: false,
        }
    }
}

impl Policy {
    /// Whether programs on this machine need no credentials now.
    pub fn trusts_here(&self) -> bool {
        match self.trust_here {
            TrustHere::UntilManaged => !self.has_managers,
            TrustHere::Always => true,
            TrustHere::Never => false,
        }
    }
}

/// The result of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be done.
    Allow,
    /// Not by this one; a user who signs in may.
    Ask,
    /// No.
    Refuse(Reason),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It changes or reveals things about others, and no user can sign in for it.
    #[error(
        "only programs on the server's own machine may do this, because no user may manage the server yet"
    )]
    HereOnly,
    /// The user has no such right.
    #[error("this user may not manage the server")]
    NoManager,
    /// Uploading, and no user can sign in for it.
    #[error("only programs on the server's own machine may upload, because no user may upload yet")]
    UploadHereOnly,
    /// The user has no such right.
    #[error("this user may not upload")]
    NoUploader,
    /// The user has no grant for the title.
    #[error("this user may not watch this title")]
    NotThisTitle,
    /// The link is for another title, or not signed by this server.
    #[error("the link is not valid for this")]
    BadLink,
    /// Its time is over.
    #[error("the link has expired")]
    OldLink,
    /// The operator's program refuses.
    #[error("the server's webhook refused the request")]
    Advised,
}

/// Decides.
pub fn decide(policy: &Policy, who: Who<'_>, what: RequestedAction<'_>, place: RequestOrigin) -> Decision {
    match what {
        RequestedAction::Nothing => Decision::Allow,
        RequestedAction::SignIn => match who {
            Who::Nobody | Who::Link(_) if policy.has_users => Decision::Ask,
            // Where no client can be a user, credentials are meant for another party: a proxy that
            // asks for its own.
            _ => Decision::Allow,
        },
        RequestedAction::List | RequestedAction::Watch(_) if policy.watching == Watching::Open => {
            Decision::Allow
        }
        RequestedAction::List => match who {
            Who::User(_) => Decision::Allow,
            Who::Nobody => Decision::Ask,
            Who::Link(_) => Decision::Refuse(Reason::BadLink),
        },
        RequestedAction::Watch(title) => match who {
            Who::User(user) if user.may_watch(title) => Decision::Allow,
            Who::User(_) => Decision::Refuse(Reason::NotThisTitle),
            Who::Link(link) if link.covers(title) => Decision::Allow,
            Who::Link(_) => Decision::Refuse(Reason::BadLink),
            Who::Nobody => Decision::Ask,
        },
        RequestedAction::SeeOthers | RequestedAction::Change => match who {
            Who::User(user) if user.manages => Decision::Allow,
            _ if place == RequestOrigin::Here && policy.trusts_here() => Decision::Allow,
            Who::User(_) => Decision::Refuse(Reason::NoManager),
            Who::Nobody | Who::Link(_) if policy.has_managers => Decision::Ask,
            Who::Nobody | Who::Link(_) => Decision::Refuse(Reason::HereOnly),
        },
        RequestedAction::Upload => match who {
            Who::User(user) if user.may_upload() => Decision::Allow,
            _ if place == RequestOrigin::Here && policy.trusts_here() => Decision::Allow,
            Who::User(_) => Decision::Refuse(Reason::NoUploader),
            Who::Nobody | Who::Link(_) if policy.has_uploaders => Decision::Ask,
            Who::Nobody | Who::Link(_) => Decision::Refuse(Reason::UploadHereOnly),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row of the table in `docs/design/0039-rights.md`.
    #[test]
    fn decide_for_every_table_row_returns_documented_decision() {
        let viewer = User::for_test("viewer", &["film"], false);
        let manager = User::for_test("manager", &[], true);
        let uploader = User { uploads: true, ..User::for_test("uploader", &[], false) };
        let link = SignedLink::for_test("film", 100);
        let (nobody, viewer, manager, link) =
            (Who::Nobody, Who::User(&viewer), Who::User(&manager), Who::Link(&link));
        let uploader = Who::User(&uploader);
        let open = Policy::default();
        let closed = Policy {
            watching: Watching::ByRights,
            has_users: true,
            has_managers: true,
            has_uploaders: true,
            ..open
        };
        let known = Policy { has_users: true, ..open };
        let unmanaged = Policy { has_managers: false, ..closed };
        let always = Policy { trust_here: TrustHere::Always, ..closed };
        let strict = Policy { trust_here: TrustHere::Never, ..closed };
        let strict_alone = Policy { has_managers: false, has_uploaders: false, ..strict };
        use Decision::{Allow, Ask, Refuse};
        use RequestOrigin::{Elsewhere, Here};
        use RequestedAction::{Change, List, Nothing, SeeOthers, SignIn, Upload, Watch};
        for (policy, who, what, place, expected) in [
            (strict, nobody, Nothing, Elsewhere, Allow),
            (open, nobody, SignIn, Here, Allow),
            (known, nobody, SignIn, Here, Ask),
            (closed, link, SignIn, Elsewhere, Ask),
            (open, viewer, SignIn, Elsewhere, Allow),
            (open, nobody, List, Elsewhere, Allow),
            (open, nobody, Watch("film"), Elsewhere, Allow),
            (open, viewer, Watch("other"), Elsewhere, Allow),
            (open, nobody, SeeOthers, Here, Allow),
            (open, nobody, Change, Here, Allow),
            (open, nobody, SeeOthers, Elsewhere, Refuse(Reason::HereOnly)),
            (open, nobody, Change, Elsewhere, Refuse(Reason::HereOnly)),
            (closed, nobody, List, Here, Ask),
            (closed, nobody, List, Elsewhere, Ask),
            (closed, viewer, List, Elsewhere, Allow),
            (closed, link, List, Elsewhere, Refuse(Reason::BadLink)),
            (closed, nobody, Watch("film"), Here, Ask),
            (closed, viewer, Watch("film"), Elsewhere, Allow),
            (closed, viewer, Watch("film@540p"), Elsewhere, Allow),
            (closed, viewer, Watch("other"), Elsewhere, Refuse(Reason::NotThisTitle)),
            (closed, manager, Watch("film"), Elsewhere, Refuse(Reason::NotThisTitle)),
            (closed, link, Watch("film"), Elsewhere, Allow),
            (closed, link, Watch("other"), Elsewhere, Refuse(Reason::BadLink)),
            (closed, nobody, Change, Here, Ask),
            (closed, nobody, SeeOthers, Here, Ask),
            (closed, nobody, Upload, Here, Ask),
            (closed, viewer, Change, Here, Refuse(Reason::NoManager)),
            (always, nobody, Change, Here, Allow),
            (always, nobody, Upload, Here, Allow),
            (unmanaged, nobody, Change, Here, Allow),
            (unmanaged, nobody, Upload, Here, Allow),
            (closed, nobody, Change, Elsewhere, Ask),
            (closed, link, Change, Elsewhere, Ask),
            (closed, viewer, Change, Elsewhere, Refuse(Reason::NoManager)),
            (closed, manager, Change, Elsewhere, Allow),
            (closed, manager, SeeOthers, Elsewhere, Allow),
            (strict, nobody, Change, Here, Ask),
            (strict, viewer, SeeOthers, Here, Refuse(Reason::NoManager)),
            (strict, manager, SeeOthers, Here, Allow),
            (strict_alone, nobody, SeeOthers, Here, Refuse(Reason::HereOnly)),
            (open, nobody, Upload, Here, Allow),
            (open, viewer, Upload, Here, Allow),
            (open, nobody, Upload, Elsewhere, Refuse(Reason::UploadHereOnly)),
            (open, link, Upload, Elsewhere, Refuse(Reason::UploadHereOnly)),
            (open, uploader, Upload, Elsewhere, Allow),
            (closed, nobody, Upload, Elsewhere, Ask),
            (closed, link, Upload, Elsewhere, Ask),
            (closed, viewer, Upload, Elsewhere, Refuse(Reason::NoUploader)),
            (closed, uploader, Upload, Elsewhere, Allow),
            (closed, manager, Upload, Elsewhere, Allow),
            (closed, uploader, Change, Elsewhere, Refuse(Reason::NoManager)),
            (closed, uploader, SeeOthers, Elsewhere, Refuse(Reason::NoManager)),
            (closed, uploader, Watch("film"), Elsewhere, Refuse(Reason::NotThisTitle)),
            (strict, nobody, Upload, Here, Ask),
            (strict, viewer, Upload, Here, Refuse(Reason::NoUploader)),
            (strict_alone, nobody, Upload, Here, Refuse(Reason::UploadHereOnly)),
        ] {
            assert_eq!(decide(&policy, who, what, place), expected, "{policy:?} {who:?} {what:?} {place:?}");
        }
    }
}
