//! What is asked of all shares, or of the one that knows.

use std::sync::Arc;

use rules::{
    AlarmError, AlarmInfo, AlarmStatus, Corrupt, Counts, Engine, Explained, Finding, Guard, Key,
    Lent, OwnAlarm, Pack, Router, RuleInfo,
};

use super::Rules;
use super::worker::Holder;

impl Rules {
    /// Runs something on one share, after all that it was given; `None` when its worker is gone.
    pub(super) fn on<T: Send + 'static>(
        &mut self,
        number: usize,
        question: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let share = self.shares.get_mut(number)?;
        share.moved = true;
        let answer = match &mut share.holder {
            Holder::Here(engine) => Some(question(engine)),
            Holder::Thread(worker) => worker.ask(question),
        };
        self.failed |= answer.is_none();
        answer
    }

    /// Runs something on every share.
    pub(super) fn each<T: Send + 'static>(
        &mut self,
        question: impl Fn(&mut Engine) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let numbers = 0..self.shares.len();
        numbers
            .filter_map(|number| self.on(number, question.clone()))
            .collect()
    }

    /// Something a person does to an alarm, by the share that knows it.
    fn person(
        &mut self,
        id: &str,
        engine_ms: u64,
        act: impl Fn(&mut Engine) -> Result<AlarmStatus, AlarmError> + Clone + Send + 'static,
    ) -> Result<AlarmStatus, AlarmError> {
        self.now = self.now.max(engine_ms);
        self.input += 1;
        let input = self.input;
        for number in 0..self.shares.len() {
            let act = act.clone();
            let done = self.on(number, move |engine| {
                engine.number_inputs(input);
                act(engine)
            });
            match done {
                None | Some(Err(AlarmError::Unknown { .. })) => {}
                Some(done) => return done,
            }
        }
        Err(AlarmError::Unknown { id: id.to_owned() })
    }

    /// See [`Engine::ack_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn ack_alarm(
        &mut self,
        id: &str,
        by: &str,
        note: &str,
        at: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let (name, by, note) = (
            Arc::<str>::from(id),
            Arc::<str>::from(by),
            Arc::<str>::from(note),
        );
        self.person(id, at, move |engine| {
            engine.ack_alarm(&name, &by, &note, at)
        })
    }

    /// See [`Engine::shelve_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn shelve_alarm(
        &mut self,
        id: &str,
        by: &str,
        for_ms: u64,
        at: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let (name, by) = (Arc::<str>::from(id), Arc::<str>::from(by));
        self.person(id, at, move |engine| {
            engine.shelve_alarm(&name, &by, for_ms, at)
        })
    }

    /// See [`Engine::unshelve_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn unshelve_alarm(
        &mut self,
        id: &str,
        by: &str,
        at: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let (name, by) = (Arc::<str>::from(id), Arc::<str>::from(by));
        self.person(id, at, move |engine| engine.unshelve_alarm(&name, &by, at))
    }

    /// See [`Engine::suppress_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn suppress_alarm(
        &mut self,
        id: &str,
        by: &str,
        on: bool,
        at: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let (name, by) = (Arc::<str>::from(id), Arc::<str>::from(by));
        self.person(id, at, move |engine| {
            engine.suppress_alarm(&name, &by, on, at)
        })
    }

    /// See [`Engine::service_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn service_alarm(
        &mut self,
        id: &str,
        by: &str,
        out: bool,
        at: u64,
    ) -> Result<AlarmStatus, AlarmError> {
        let (name, by) = (Arc::<str>::from(id), Arc::<str>::from(by));
        self.person(id, at, move |engine| {
            engine.service_alarm(&name, &by, out, at)
        })
    }

    /// See [`Engine::reset_alarm`].
    ///
    /// # Errors
    /// As there.
    pub fn reset_alarm(&mut self, id: &str, by: &str, at: u64) -> Result<AlarmStatus, AlarmError> {
        let (name, by) = (Arc::<str>::from(id), Arc::<str>::from(by));
        self.person(id, at, move |engine| engine.reset_alarm(&name, &by, at))
    }

    /// See [`Engine::raise_own`]. The first share has all alarms of the gateway itself.
    pub fn raise_own(&mut self, about: OwnAlarm, engine_ms: u64) {
        self.on_first(engine_ms, move |engine| engine.raise_own(about, engine_ms));
    }

    /// See [`Engine::clear_own`].
    pub fn clear_own(&mut self, rule: &str, word: &str, of: &str, engine_ms: u64) {
        let name: [Arc<str>; 3] = [rule.into(), word.into(), of.into()];
        self.on_first(engine_ms, move |engine| {
            let [rule, word, of] = &name;
            engine.clear_own(rule, word, of, engine_ms);
        });
    }

    /// An input that the first share alone takes.
    fn on_first(&mut self, engine_ms: u64, act: impl FnOnce(&mut Engine) + Send + 'static) {
        self.now = self.now.max(engine_ms);
        self.input += 1;
        let input = self.input;
        self.on(0, move |engine| {
            engine.number_inputs(input);
            act(engine);
        });
    }

    /// See [`Engine::active_own`].
    pub fn active_own(&mut self) -> Vec<OwnAlarm> {
        self.on(0, |engine| engine.active_own().cloned().collect())
            .unwrap_or_default()
    }

    /// See [`Engine::set_enabled`].
    pub fn set_enabled(&mut self, rule: &str, on: bool) -> bool {
        let rule = Arc::<str>::from(rule);
        let known = self.each(move |engine| engine.set_enabled(&rule, on));
        known.contains(&true)
    }

    /// See [`Engine::check`].
    pub fn check(&mut self, guard: &Guard) -> bool {
        if let Some(engine) = self.alone() {
            return engine.check(guard);
        }
        let holder = self.router.holder_of(guard) as usize;
        let guard = guard.clone();
        self.on(holder, move |engine| engine.check(&guard))
            .unwrap_or(false)
    }

    /// See [`Engine::guard`].
    pub fn guard(&mut self, rule: &str, position: usize, text: &str, source: Key) -> Option<Guard> {
        let (rule, text) = (Arc::<str>::from(rule), Arc::<str>::from(text));
        self.on(0, move |engine| {
            engine.guard(&rule, position, &text, source)
        })
        .flatten()
    }

    /// See [`Engine::check_birth`]. Findings are kept by the first share, of all keys.
    pub fn check_birth(&mut self, key: &Key, metrics: &[(&str, &'static str)]) -> Vec<Finding> {
        if let Some(engine) = self.alone() {
            return engine.check_birth(key, metrics);
        }
        let key = key.clone();
        let metrics: Vec<(Arc<str>, &'static str)> = metrics
            .iter()
            .map(|(name, datatype)| (Arc::from(*name), *datatype))
            .collect();
        let found = self.on(0, move |engine| {
            let metrics: Vec<_> = metrics.iter().map(|(n, d)| (&**n, *d)).collect();
            engine.check_birth(&key, &metrics)
        });
        found.unwrap_or_default()
    }

    /// See [`Engine::reload`].
    pub fn reload(&mut self, packs: Vec<Pack>) {
        if let Some(engine) = self.alone() {
            return engine.reload(packs);
        }
        let of = u32::try_from(self.shares.len()).unwrap_or(1);
        self.router = Router::new(&packs, of);
        self.input += 1;
        let (input, now) = (self.input, self.now);
        self.each(move |engine| {
            engine.number_inputs(input);
            engine.advance_to(now);
            engine.reload(packs.clone());
        });
        // Rules over nodes and groups that are new know of devices what is known.
        let lent: Arc<[Lent]> = self.each(|engine| engine.lend_all()).concat().into();
        if !lent.is_empty() {
            self.each(move |engine| engine.borrow(&lent));
        }
    }

    /// See [`Engine::set_phrase`].
    pub fn set_phrase(&mut self, phrase: &str, vector: &[f32]) {
        let (phrase, vector) = (Arc::<str>::from(phrase), Arc::<[f32]>::from(vector));
        self.each(move |engine| engine.set_phrase(&phrase, &vector));
    }

    /// See [`Engine::phrases`].
    pub fn phrases(&mut self) -> Vec<Arc<str>> {
        self.on(0, |engine| engine.phrases()).unwrap_or_default()
    }

    /// See [`Engine::compares_texts`].
    pub fn compares_texts(&mut self, rule: &str) -> bool {
        let rule = Arc::<str>::from(rule);
        self.on(0, move |engine| engine.compares_texts(&rule))
            .unwrap_or(false)
    }

    /// See [`Engine::names_group`].
    pub fn names_group(&mut self, group: &str) -> bool {
        let group = Arc::<str>::from(group);
        self.on(0, move |engine| engine.names_group(&group))
            .unwrap_or(false)
    }

    // --- state

    /// See [`Engine::mark_all_dirty`].
    pub fn mark_all_dirty(&mut self) {
        self.each(Engine::mark_all_dirty);
    }

    /// See [`Engine::dirty_keys`].
    pub fn dirty_keys(&mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.each(Engine::dirty_keys).concat()
    }

    /// See [`Engine::restore`].
    ///
    /// # Errors
    /// As there.
    pub fn restore(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), Corrupt> {
        let (key, bytes) = (Arc::<[u8]>::from(key), Arc::<[u8]>::from(bytes));
        let done = self.each(move |engine| engine.restore(&key, &bytes));
        done.into_iter().collect()
    }

    // --- listings

    /// See [`Engine::list`].
    pub fn list(&mut self) -> Vec<RuleInfo> {
        let lists = self.each(|engine| engine.list()).into_iter();
        let sum = lists.reduce(|mut sum, other| {
            sum.iter_mut()
                .zip(other)
                .for_each(|(rule, more)| rule.add(more));
            sum
        });
        sum.unwrap_or_default()
    }

    /// See [`Engine::rule_count`].
    pub fn rule_count(&mut self) -> usize {
        self.on(0, |engine| engine.rule_count()).unwrap_or(0)
    }

    /// See [`Engine::counts`].
    pub fn counts(&mut self) -> Counts {
        let mut sum = Counts::default();
        let counts = self.each(|engine| engine.counts());
        counts.into_iter().for_each(|counts| sum.add(counts));
        sum
    }

    /// See [`Engine::alarms`].
    pub fn alarms(&mut self) -> Vec<AlarmInfo> {
        let mut all = self.each(|engine| engine.alarms()).concat();
        all.sort_by(AlarmInfo::cmp_urgency);
        all
    }

    /// See [`Engine::alarm_counts`].
    pub fn alarm_counts(&mut self) -> (usize, usize) {
        let counts = self.each(|engine| engine.alarm_counts()).into_iter();
        counts.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// See [`Engine::explain`].
    pub fn explain(&mut self, rule: &str) -> Option<Explained> {
        let rule = Arc::<str>::from(rule);
        let all = self.each(move |engine| engine.explain(&rule));
        all.into_iter().flatten().reduce(|mut sum, other| {
            sum.add(other);
            sum
        })
    }
}
