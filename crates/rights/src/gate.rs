//! The gate that every request passes: it reads the credentials, verifies them and obtains the
//! decision.

use std::fmt;
use std::net::IpAddr;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::advice::Advised;
use crate::checked::{Checked, Pair};
use crate::clock::Now;
use crate::credentials::Credentials;
use crate::decide::{Decision, Policy, Reason, RequestOrigin, RequestedAction, Watching, Who, decide};
use crate::digest::{Nonces, Response, challenges};
use crate::known::{Limits, Quota, RightsSnapshot, User};
use crate::link::SignedLink;
use crate::secret::{self, REALM, SecretError};
use crate::throttle::Throttle;

millrace_core::counters! {
    /// Admitted and refused requests.
    pub struct RightsCounters {
        /// Requests answered by asking for credentials that had none.
        sum asked,
        /// Requests with credentials that are wrong.
        sum wrong_credentials,
        /// Requests refused because of a right that the user, or the link, does not have.
        sum refused,
        /// Requests refused unseen because too many of their address had wrong credentials.
        sum throttled,
        /// Passwords checked.
        sum passwords_checked,
        /// Requests refused because too many passwords waited to be checked.
        sum busy,
        /// Questions put to the webhook.
        sum webhook_asked,
        /// Of these, answered with no.
        sum webhook_refused,
        /// Times that the webhook gave no answer.
        sum webhook_failed,
        /// Requests refused because too many questions to the webhook were under way, of all or of one address.
        sum webhook_crowded,
        /// Users that are known.
        gauge users,
    }
}

/// A request, as far as rights are concerned.
#[derive(Clone, Copy)]
pub struct AccessRequest<'a> {
    /// The requested action.
    pub what: RequestedAction<'a>,
    /// Where it is from.
    pub place: RequestOrigin,
    /// Its address: wrong credentials are counted by it.
    pub address: IpAddr,
    /// Value of `Authorization`.
    pub authorization: Option<&'a str>,
    /// What stands behind the `?` of its address.
    pub query: Option<&'a str>,
    /// For protocols with Digest.
    pub digest: Option<DigestOf<'a>>,
    /// The visitor that this connection was found to be before, and whether the request only
    /// continues an action allowed then.
    pub before: Option<(&'a Visitor, bool)>,
    /// A [`Check`] of it has been made.
    pub is_again: bool,
}

/// The request that an answer to a Digest challenge must match.
#[derive(Clone, Copy)]
pub struct DigestOf<'a> {
    /// The method.
    pub method: &'a str,
    /// Whether an address that was hashed is the one that is asked for.
    pub is_uri: &'a dyn Fn(&str) -> bool,
}

/// An admitted client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// A client that need not identify itself.
    Anybody,
    /// The user of this name.
    User(Arc<str>),
    /// The holder of this link.
    Link(Arc<SignedLink>),
}

/// The result of a request.
#[derive(Debug)]
pub enum AccessVerdict {
    /// It may be done.
    Allow(Visitor),
    /// It needs credentials.
    Ask {
        /// There were some, and they are wrong.
        is_wrong: bool,
        /// They were right once: a player can try again without asking its viewer.
        is_stale: bool,
    },
    /// No.
    Refuse(Reason),
    /// Not now: too many wrong credentials have come from there.
    TooMany,
    /// Not now: too many passwords wait to be checked.
    Busy,
    /// A password has to be looked at first, which takes long: give it to [`Gate::check`], then ask again.
    Check(Check),
}

/// A password to be checked.
pub struct Check {
    pair: Pair,
    hash: Option<String>,
    password: String,
    address: IpAddr,
    generation: u64,
}

/// A check, and the callback for its end.
pub(crate) type CheckJob = (Check, Box<dyn FnOnce() + Send>);

/// Everything that changes with requests.
struct Live {
    checked: Checked,
    throttle: Throttle,
    nonces: Nonces,
    counters: RightsCounters,
}

/// The known users and rights, and the number of their changes.
struct Current {
    known: Arc<RightsSnapshot>,
    policy: Policy,
    generation: u64,
}

/// See the module.
pub struct Gate {
    current: RwLock<Current>,
    live: Mutex<Live>,
    /// Of pairs: passwords are not kept.
    key: [u8; 32],
    checks: Option<SyncSender<CheckJob>>,
    advised: OnceLock<Arc<Advised>>,
}

impl Gate {
    /// A gate for those who are known.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn new(policy: Policy, known: RightsSnapshot) -> Result<Self, SecretError> {
        Self::with_checks(policy, known, None)
    }

    pub(crate) fn with_checks(
        policy: Policy,
        known: RightsSnapshot,
        checks: Option<SyncSender<CheckJob>>,
    ) -> Result<Self, SecretError> {
        let live = Live {
            checked: Checked::default(),
            throttle: Throttle::default(),
            nonces: Nonces::new(secret::random()?),
            counters: RightsCounters::default(),
        };
        let current = Current { known: Arc::default(), policy, generation: 0 };
        let (current, live) = (RwLock::new(current), Mutex::new(live));
        let gate = Self { current, live, key: secret::random()?, checks, advised: OnceLock::new() };
        gate.replace(known);
        Ok(gate)
    }

    /// Replaces the known users and rights. Results of password checks are forgotten.
    pub fn replace(&self, known: RightsSnapshot) {
        let users = known.users.len() as u64;
        {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            current.policy.has_users = !known.users.is_empty();
            current.policy.has_managers = known.has_managers();
            current.policy.has_uploaders = known.has_uploaders();
            current.known = Arc::new(known);
            current.generation += 1;
        }
        let mut live = self.live();
        live.checked.clear();
        live.counters.users = users;
    }

    /// Looks at a request.
    pub fn ask(&self, now: Now, asked: &AccessRequest<'_>) -> AccessVerdict {
        let (known, policy, generation) = self.current();
        let verdict = AccessEvaluation { gate: self, known: &known, policy, generation, now, asked }.look();
        let mut live = self.live();
        match &verdict {
            AccessVerdict::Allow(_) | AccessVerdict::Check(_) => {}
            AccessVerdict::Ask { is_wrong: true, is_stale: false } => live.counters.wrong_credentials += 1,
            AccessVerdict::Ask { .. } => live.counters.asked += 1,
            AccessVerdict::Refuse(_) => live.counters.refused += 1,
            AccessVerdict::TooMany => live.counters.throttled += 1,
            AccessVerdict::Busy => live.counters.busy += 1,
        }
        verdict
    }

    /// Checks a password, on another thread if there is one for it, and calls `done` afterwards. If
    /// too many checks wait, the password is not checked.
    pub fn check(&self, check: Check, done: Box<dyn FnOnce() + Send>) {
        match &self.checks {
            None => {
                self.carry_out(check, Now::read());
                done();
            }
            Some(checks) => {
                if let Err(TrySendError::Full((_, done)) | TrySendError::Disconnected((_, done))) =
                    checks.try_send((check, done))
                {
                    done();
                }
            }
        }
    }

    /// Checks a password here and now; takes long.
    pub fn carry_out(&self, check: Check, now: Now) {
        let is_right = match &check.hash {
            Some(hash) => secret::is_password(&check.password, hash),
            None => secret::waste_time(&check.password),
        };
        let (_, _, generation) = self.current();
        let mut live = self.live();
        live.counters.passwords_checked += 1;
        if !is_right {
            live.throttle.fail(check.address, now.mono);
        }
        // It may have been changed meanwhile.
        if generation == check.generation {
            live.checked.note(check.pair, is_right, now.mono);
        }
    }

    /// Whether a visitor may watch a title: for lists.
    pub fn may_watch(&self, visitor: &Visitor, title: &str) -> bool {
        self.decision(visitor, RequestedAction::Watch(title), RequestOrigin::Elsewhere) == Decision::Allow
    }

    /// Returns the decision on another action of a visitor, to choose the data to show.
    pub fn decision(&self, visitor: &Visitor, what: RequestedAction<'_>, place: RequestOrigin) -> Decision {
        let (known, policy, _) = self.current();
        let who = match visitor {
            Visitor::Anybody => Who::Nobody,
            Visitor::User(name) => known.users.get(name).map_or(Who::Nobody, Who::User),
            Visitor::Link(link) => Who::Link(link),
        };
        decide(&policy, who, what, place)
    }

    /// Returns a visitor's limits on simultaneous use, if it is a user with limits.
    pub fn quota(&self, visitor: &Visitor) -> Option<Quota> {
        let Visitor::User(name) = visitor else { return None };
        let limits = self.current().0.users.get(name)?.limits;
        (limits != Limits::default()).then(|| Quota { user: Arc::clone(name), limits })
    }

    /// Returns a number that increases with every change of users and their rights.
    pub fn version(&self) -> u64 {
        self.current().2
    }

    /// Whether rights let all clients see all titles.
    pub fn is_open(&self) -> bool {
        self.current().1.watching == Watching::Open
    }

    /// Whether titles are restricted, by rights or by a program that is asked: responses about them
    /// must not be kept in shared caches.
    pub fn is_private(&self) -> bool {
        self.advised.get().is_some() || self.current().1.watching == Watching::ByRights
    }

    /// What HTTP asks with.
    pub fn http_challenges(&self) -> [String; 2] {
        [format!("Basic realm=\"{REALM}\", charset=\"UTF-8\""), format!("Bearer realm=\"{REALM}\"")]
    }

    /// Returns the challenges for an RTSP client, in this order. Digest is offered only if a user
    /// can answer it, because players that know it do not try Basic as well.
    pub fn rtsp_challenges(&self, client: IpAddr, now: Now, is_stale: bool) -> Vec<String> {
        let basic = format!("Basic realm=\"{REALM}\"");
        if !self.current().0.has_digest() {
            return vec![basic];
        }
        let nonce = self.live().nonces.issue(client, now.mono);
        let [sha256, md5] = challenges(&nonce, is_stale);
        vec![sha256, md5, basic]
    }

    /// From now on this program is asked as well; the first one stays.
    pub fn be_advised(&self, by: Arc<Advised>) {
        let _ = self.advised.set(by);
    }

    /// Returns the program that must also be asked before an admitted visitor may watch a title.
    pub fn advised(&self) -> Option<&Arc<Advised>> {
        self.advised.get()
    }

    /// Returns the operator's choices and which kinds of users exist now.
    pub fn policy(&self) -> Policy {
        self.current().1
    }

    /// Returns the counters.
    pub fn counters(&self) -> RightsCounters {
        let counts = self.advised.get().map(|advised| advised.counts()).unwrap_or_default();
        RightsCounters {
            webhook_asked: counts.asked,
            webhook_refused: counts.refused,
            webhook_failed: counts.failed,
            webhook_crowded: counts.crowded,
            ..self.live().counters
        }
    }

    fn current(&self) -> (Arc<RightsSnapshot>, Policy, u64) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&current.known), current.policy, current.generation)
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, policy, _) = self.current();
        f.debug_struct("Gate").field("policy", &policy).field("users", &known.users.len()).finish()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Check")
    }
}

/// A request that is being looked at.
struct AccessEvaluation<'a> {
    gate: &'a Gate,
    known: &'a RightsSnapshot,
    policy: Policy,
    generation: u64,
    now: Now,
    asked: &'a AccessRequest<'a>,
}

impl AccessEvaluation<'_> {
    fn look(&self) -> AccessVerdict {
        if self.decide(Who::Nobody) == Decision::Allow {
            return AccessVerdict::Allow(Visitor::Anybody);
        }
        let link = self.link();
        if let Some(Ok(link)) = &link
            && self.decide(Who::Link(link)) == Decision::Allow
        {
            return AccessVerdict::Allow(Visitor::Link(Arc::new(link.clone())));
        }
        match (self.asked.authorization, link) {
            (Some(authorization), _) => self.credentials(&Credentials::read(authorization)),
            (None, Some(Err(reason))) => AccessVerdict::Refuse(reason),
            (None, _) => self.before().unwrap_or_else(|| self.nobody(false)),
        }
    }

    fn decide(&self, who: Who<'_>) -> Decision {
        decide(&self.policy, who, self.asked.what, self.asked.place)
    }

    fn link(&self) -> Option<Result<SignedLink, Reason>> {
        let RequestedAction::Watch(title) = self.asked.what else { return None };
        let key = self.known.keys.as_ref().map(|keys| &keys.links);
        SignedLink::read(key, self.asked.query?, title, self.now.unix_s)
    }

    /// Returns the verdict on the visitor known before; `None`: there is none, or it is no longer
    /// known.
    fn before(&self) -> Option<AccessVerdict> {
        let (visitor, goes_on) = self.asked.before?;
        match visitor {
            Visitor::Anybody => None,
            Visitor::User(name) => Some(self.user(self.known.users.get(name)?)),
            Visitor::Link(link) if link.is_over(self.now.unix_s) && !goes_on => {
                Some(AccessVerdict::Refuse(Reason::OldLink))
            }
            Visitor::Link(link) => (self.decide(Who::Link(link)) == Decision::Allow)
                .then(|| AccessVerdict::Allow(Visitor::Link(Arc::clone(link)))),
        }
    }

    /// Returns the verdict on a client that presented no credentials, or wrong ones.
    fn nobody(&self, is_wrong: bool) -> AccessVerdict {
        match self.decide(Who::Nobody) {
            Decision::Allow => AccessVerdict::Allow(Visitor::Anybody),
            Decision::Ask => AccessVerdict::Ask { is_wrong, is_stale: false },
            Decision::Refuse(reason) => AccessVerdict::Refuse(reason),
        }
    }

    fn user(&self, user: &User) -> AccessVerdict {
        match self.decide(Who::User(user)) {
            Decision::Allow => AccessVerdict::Allow(Visitor::User(Arc::clone(&user.name))),
            Decision::Ask => AccessVerdict::Ask { is_wrong: false, is_stale: false },
            Decision::Refuse(reason) => AccessVerdict::Refuse(reason),
        }
    }

    fn credentials(&self, credentials: &Credentials<'_>) -> AccessVerdict {
        match credentials {
            Credentials::Bearer(token) => self.bearer(token),
            Credentials::Basic { user, password } => self.basic(user, password),
            Credentials::Digest(response) => match self.asked.digest {
                Some(of) => self.digest(response, of),
                None => self.fail(),
            },
            Credentials::Other => self.fail(),
        }
    }

    /// Looks up a token. Tokens cannot be guessed, so it is looked up however many were wrong.
    fn bearer(&self, token: &str) -> AccessVerdict {
        let keys = self.known.keys.as_ref();
        let found = keys
            .and_then(|keys| secret::hash_token(token, &keys.tokens))
            .and_then(|hash| self.known.tokens.get(&hash))
            .filter(|token| token.expires_unix_s.is_none_or(|expires| self.now.unix_s < expires))
            .and_then(|token| self.known.users.get(&token.user));
        match found {
            Some(user) => self.user(user),
            None => self.fail(),
        }
    }

    fn basic(&self, user: &str, password: &str) -> AccessVerdict {
        let pair = Checked::pair(&self.gate.key, user, password);
        let known = self.known.users.get(user);
        let (checked, is_shut) = {
            let live = self.gate.live();
            (live.checked.get(&pair, self.now.mono), live.throttle.is_shut(self.asked.address, self.now.mono))
        };
        match (checked, known) {
            (Some(true), Some(user)) => self.user(user),
            _ if is_shut => AccessVerdict::TooMany,
            // Its failure has been counted, by whoever checked it.
            (Some(_), _) if self.asked.is_again => self.nobody(true),
            (Some(_), _) => self.fail(),
            (None, _) if self.asked.is_again => AccessVerdict::Busy,
            (None, known) => AccessVerdict::Check(Check {
                pair,
                hash: known.map(|user| user.password.clone()),
                password: password.to_owned(),
                address: self.asked.address,
                generation: self.generation,
            }),
        }
    }

    fn digest(&self, response: &Response, of: DigestOf<'_>) -> AccessVerdict {
        if self.gate.live().throttle.is_shut(self.asked.address, self.now.mono) {
            return AccessVerdict::TooMany;
        }
        let user = self.known.users.get(&*response.user);
        let is_right = user.and_then(|user| user.ha1).is_some_and(|ha1| response.is_right(&ha1, of.method));
        let (Some(user), true, Ok(count)) = (user, is_right && (of.is_uri)(&response.uri), response.count())
        else {
            return self.fail();
        };
        if !self.gate.live().nonces.take(&response.nonce, self.asked.address, count, self.now.mono) {
            return AccessVerdict::Ask { is_wrong: true, is_stale: true };
        }
        self.user(user)
    }

    /// Wrong credentials.
    fn fail(&self) -> AccessVerdict {
        let is_shut = {
            let mut live = self.gate.live();
            let is_shut = live.throttle.is_shut(self.asked.address, self.now.mono);
            live.throttle.fail(self.asked.address, self.now.mono);
            is_shut
        };
        if is_shut { AccessVerdict::TooMany } else { self.nobody(true) }
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
