use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Stores the questions it receives, for the test to answer.
#[derive(Clone, Default)]
struct Asks(Arc<Mutex<Vec<(Question, Answered)>>>);

impl Adviser for Asks {
    fn ask(&self, question: &Question, answered: Answered) {
        self.0.lock().unwrap().push((question.clone(), answered));
    }
}

impl Asks {
    fn answer(&self, answer: Result<bool, String>) {
        let (_, answered) = self.0.lock().unwrap().remove(0);
        answered(answer);
    }
}

fn site(lets_in_without: bool) -> (Asks, Arc<Advised>, Arc<AtomicUsize>) {
    let asks = Asks::default();
    (asks.clone(), Advised::new(Box::new(asks), lets_in_without), Arc::default())
}

fn question(number: u16) -> Question {
    question_of(1, number)
}

/// The same question from this host.
fn question_of(host: u8, number: u16) -> Question {
    let visitor = Visitor::User("anna".into());
    Question::of(&visitor, &format!("film{number}@540p"), IpAddr::from([192, 0, 2, host]))
}

fn ask(advised: &Arc<Advised>, number: u16, told: &Arc<AtomicUsize>) {
    ask_of(advised, question(number), told);
}

fn ask_of(advised: &Arc<Advised>, question: Question, told: &Arc<AtomicUsize>) {
    let told = Arc::clone(told);
    let tell = move || {
        told.fetch_add(1, Ordering::SeqCst);
    };
    advised.ask(question, Box::new(tell));
}

fn later(ns: u64) -> Now {
    let now = Now::read();
    Now { mono: now.mono.plus_ns(ns), ..now }
}

#[test]
fn ask_by_several_waiters_shares_one_answer_until_expiry() {
    let (asks, advised, told) = site(false);
    for (answer, advice, time) in [
        (Ok(true), Advice::Allow, ADVICE_GIVEN_NS),
        (Ok(false), Advice::Refuse, ADVICE_REFUSED_NS),
        (Err("it is gone".to_owned()), Advice::Unanswered, ADVICE_FAILED_NS),
    ] {
        told.store(0, Ordering::SeqCst);
        let number = time as u16;
        assert_eq!(advised.look(later(0), &question(number)), None);
        (0..3).for_each(|_| ask(&advised, number, &told));
        assert_eq!((asks.0.lock().unwrap().len(), told.load(Ordering::SeqCst)), (1, 0));
        let asked = asks.0.lock().unwrap()[0].0.clone();
        // Whatever was made of a title is that title.
        assert_eq!((asked.title, asked.user.as_deref()), (format!("film{number}"), Some("anna")));
        asks.answer(answer);
        assert_eq!(told.load(Ordering::SeqCst), 3);
        assert_eq!(advised.look(later(0), &question(number)), Some(advice));
        assert_eq!(advised.look(later(time), &question(number)), None);
    }
    let counts = advised.counts();
    assert_eq!((counts.asked, counts.refused, counts.failed), (3, 1, 1));
    assert_eq!(advised.live().waiting, 0);
}

#[test]
fn look_again_after_failed_answer_applies_configured_default() {
    for (lets_in, advice) in [(true, Advice::Allow), (false, Advice::Unanswered)] {
        let (asks, advised, told) = site(lets_in);
        ask(&advised, 1, &told);
        asks.answer(Err("no".to_owned()));
        assert_eq!(advised.look_again(later(0), &question(1)), advice);
    }
}

#[test]
fn ask_with_too_many_questions_under_way_is_crowded_under_either_policy() {
    for lets_in in [true, false] {
        let (asks, advised, told) = site(lets_in);
        for host in 0..(MAX_ADVICE_ASKED / MAX_ADVICE_ASKED_PER_ADDRESS) as u8 {
            (0..MAX_ADVICE_ASKED_PER_ADDRESS as u16)
                .for_each(|number| ask_of(&advised, question_of(host, number), &told));
        }
        assert_eq!(told.load(Ordering::SeqCst), 0);
        // A further question is not asked, but a request may wait for one that is being asked
        // already.
        let more = question_of(100, 0);
        ask_of(&advised, more.clone(), &told);
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert_eq!(advised.look_again(later(0), &more), Advice::Crowded);
        ask(&advised, 0, &told);
        assert_eq!((told.load(Ordering::SeqCst), asks.0.lock().unwrap().len()), (1, MAX_ADVICE_ASKED));
        (0..MAX_ADVICE_ASKED).for_each(|_| asks.answer(Ok(true)));
        assert_eq!(told.load(Ordering::SeqCst), 2 + MAX_ADVICE_ASKED);
        assert_eq!(advised.counts().crowded, 1);
        assert!(advised.live().shares.values().all(|share| (share.asked, share.waiting) == (0, 0)));
    }
}

#[test]
fn ask_of_a_greedy_address_leaves_others_their_questions() {
    let (asks, advised, told) = site(false);
    (0..1000).for_each(|number| ask(&advised, number, &told));
    assert_eq!(asks.0.lock().unwrap().len(), MAX_ADVICE_ASKED_PER_ADDRESS);
    assert_eq!(told.load(Ordering::SeqCst), 1000 - MAX_ADVICE_ASKED_PER_ADDRESS);
    // The number of its requests that wait for one question is bounded as well.
    told.store(0, Ordering::SeqCst);
    (0..1000).for_each(|_| ask(&advised, 0, &told));
    let waiting = MAX_ADVICE_WAITING_PER_ADDRESS - MAX_ADVICE_ASKED_PER_ADDRESS;
    assert_eq!(told.load(Ordering::SeqCst), 1000 - waiting);
    // A whole /64 counts as one client.
    let of = |text: &str, number: u16| Question { address: text.parse().unwrap(), ..question(number) };
    let count = || asks.0.lock().unwrap().len();
    (0..1000).for_each(|number| ask_of(&advised, of(&format!("2001:db8::{number:x}"), number), &told));
    assert_eq!(count(), 2 * MAX_ADVICE_ASKED_PER_ADDRESS);
    ask_of(&advised, of("2001:db8:0:1::1", 0), &told);
    assert_eq!(count(), 2 * MAX_ADVICE_ASKED_PER_ADDRESS + 1);
}

#[test]
fn answers_that_are_kept_have_a_bound_for_all_and_for_each_address() {
    let mut live = Live::default();
    let keep = |live: &mut Live, host: u8, number: u16| {
        live.keep(question_of(host, number), Advice::Allow, Instant(u64::from(number)));
    };
    keep(&mut live, 200, 0);
    // One address requests the titles of a whole library.
    for number in 0..MAX_ADVICE_KEPT as u16 + 10 {
        keep(&mut live, 1, number);
    }
    assert_eq!(live.kept.len(), MAX_ADVICE_KEPT_PER_ADDRESS + 1);
    assert!(live.kept.contains_key(&question_of(200, 0)));
    let first = MAX_ADVICE_KEPT as u16 + 10 - MAX_ADVICE_KEPT_PER_ADDRESS as u16;
    assert!(!live.kept.contains_key(&question(first - 1)) && live.kept.contains_key(&question(first)));
    for host in 2..20 {
        (0..MAX_ADVICE_KEPT_PER_ADDRESS as u16).for_each(|number| keep(&mut live, host, number));
    }
    assert_eq!((live.kept.len(), live.order.len()), (MAX_ADVICE_KEPT, MAX_ADVICE_KEPT));
    assert_eq!(live.shares.values().map(|share| share.kept).sum::<usize>(), MAX_ADVICE_KEPT);
}

#[test]
fn question_of_other_visitor_title_address_or_link_differs() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let anybody = Question::of(&Visitor::Anybody, "film", address);
    let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x201]);
    assert_eq!(anybody, Question::of(&Visitor::Anybody, "film", mapped));
    for other in [
        Question::of(&Visitor::User("anna".into()), "film", address),
        Question::of(&Visitor::Anybody, "other", address),
        Question::of(&Visitor::Anybody, "film", IpAddr::from([192, 0, 2, 2])),
        Question { has_link: true, ..anybody.clone() },
    ] {
        assert_ne!(anybody, other);
    }
}
