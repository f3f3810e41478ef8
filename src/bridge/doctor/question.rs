//! Questions to JetStream, and why one has no good answer: what is missing, what is not permitted and what is
//! only slow are mended in different ways.

use async_nats::Client;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{Level, Report};
use crate::bridge::ask::{Ask, AskError};
use crate::bridge::classify::{Class, Refusal};
use crate::bridge::connect::Report as Word;
use crate::pipeline::subject::ROOT;

/// "stream not found".
const NOT_FOUND: u32 = 10059;

/// A connection, with the words that the server says beside its answers.
pub(in crate::bridge) struct Questions {
    pub(in crate::bridge) client: Client,
    pub(super) words: mpsc::Receiver<Word>,
    /// Why no answer can be heard. The server says it once, when the inbox is subscribed to.
    deaf: Option<String>,
}

/// No good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bridge) enum Trouble {
    /// It does not exist.
    Missing,
    /// The server does not permit the question, or its answer.
    Denied(String),
    /// JetStream refused.
    Refused(Refusal),
    /// No answer, or none that can be read.
    Silent(String),
}

impl From<AskError> for Trouble {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Refused(refusal) if refusal.err_code == NOT_FOUND => Self::Missing,
            AskError::Refused(refusal) => Self::Refused(refusal),
            AskError::Lost(detail) => Self::Silent(detail),
        }
    }
}

impl Trouble {
    /// Says it of `what`, with what helps against this trouble; for [`Self::Missing`] the caller knows better.
    pub(in crate::bridge) fn tell(
        &self,
        report: &mut Report,
        what: impl Into<String>,
        gateway: &str,
    ) {
        let (level, is, mend) = match self {
            Self::Missing => (Level::Error, "not there".to_owned(), None),
            Self::Denied(detail) => (
                Level::Error,
                format!("not permitted: {detail}"),
                Some(permissions(gateway)),
            ),
            Self::Refused(refusal) => (
                Level::Error,
                format!("{} (error {})", refusal.description, refusal.err_code),
                Some(remedy(refusal).to_owned()),
            ),
            Self::Silent(detail) => (
                Level::Error,
                format!("not known: {detail}"),
                Some(
                    "nats server check jetstream; nats stream report (a stream without a leader answers nothing; a slow line answers later: ask again)"
                        .to_owned(),
                ),
            ),
        };
        report.say(level, what, is).mend = mend;
    }
}

fn remedy(refusal: &Refusal) -> &'static str {
    match refusal.class() {
        Class::NoJetStream => {
            "enable JetStream for this account (jetstream { } in the server's configuration, and jetstream: enabled in the account)"
        }
        Class::Full => {
            "nats account info (raise the account's or the server's limits, or free room)"
        }
        Class::NoStream | Class::Retry | Class::Resync | Class::Permanent => {
            "nats server report jetstream (a cluster without a leader or a server that is starting refuses for a while: ask again)"
        }
    }
}

/// What a gateway's user needs.
pub(super) fn permissions(gateway: &str) -> String {
    format!(
        "permissions: {{ publish: {{ allow: [\"{ROOT}.{gateway}.>\", \"$JS.API.>\", \"$KV.>\"] }}, \
         subscribe: {{ allow: [\"_INBOX.>\", \"{ROOT}.{gateway}.write.>\", \"{ROOT}.{gateway}.ack\"] }}, \
         allow_responses: true }} for this user (nsc edit user … --allow-pub … --allow-sub …)"
    )
}

impl Questions {
    pub(super) fn new(client: Client, words: mpsc::Receiver<Word>) -> Self {
        Self {
            client,
            words,
            deaf: None,
        }
    }

    /// Asks `$JS.API.<what>`.
    pub(in crate::bridge) async fn api(
        &mut self,
        what: &str,
        request: &Value,
    ) -> Result<Value, Trouble> {
        let ask = Ask(self.client.clone());
        self.watched(&format!("$JS.API.{what}"), ask.api(what, request))
            .await
    }

    /// Waits for the answer to something published to `subject`, unless the server says that it is forbidden.
    pub(super) async fn watched<T>(
        &mut self,
        subject: &str,
        asked: impl Future<Output = Result<T, AskError>>,
    ) -> Result<T, Trouble> {
        if let Some(detail) = &self.deaf {
            return Err(Trouble::Denied(detail.clone()));
        }
        tokio::pin!(asked);
        loop {
            tokio::select! {
                biased;
                answer = &mut asked => return answer.map_err(Trouble::from),
                Some(word) = self.words.recv() => match word {
                    Word::Server(detail) if forbids(&detail, "Subscription", "_INBOX") => {
                        self.deaf = Some(detail.clone());
                        return Err(Trouble::Denied(detail));
                    }
                    Word::Server(detail) if forbids(&detail, "Publish", &format!("{subject}\"")) => {
                        return Err(Trouble::Denied(detail));
                    }
                    // Of something that was asked before.
                    Word::Server(_) => {}
                    Word::Closed => {
                        let detail = "the server closed the connection".to_owned();
                        return Err(Trouble::Silent(detail));
                    }
                },
            }
        }
    }
}

/// Whether these words forbid to do this to what begins so.
fn forbids(detail: &str, verb: &str, subject: &str) -> bool {
    detail.contains(&format!("Permissions Violation for {verb} to \"{subject}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_belongs_to_the_question_that_it_names() {
        let words = "nats: Permissions Violation for Publish to \"$JS.API.INFO\"";
        assert!(forbids(words, "Publish", "$JS.API.INFO\""));
        assert!(!forbids(words, "Publish", "$JS.API.STREAM.INFO.A\""));
        assert!(!forbids(words, "Subscription", "_INBOX"));
        let inbox = "nats: Permissions Violation for Subscription to \"_INBOX.a.*\"";
        assert!(forbids(inbox, "Subscription", "_INBOX"));
        assert!(!forbids("nats: Slow Consumer", "Publish", "$JS.API.INFO\""));
    }

    #[test]
    fn each_trouble_has_a_remedy_of_its_own() {
        let refused = |err_code: u32| {
            Trouble::from(AskError::Refused(Refusal {
                code: 400,
                err_code,
                description: "words".to_owned(),
            }))
        };
        assert_eq!(refused(10059), Trouble::Missing);
        for (trouble, mend) in [
            (refused(10039), "enable JetStream"),
            (refused(10047), "nats account info"),
            (refused(10008), "nats server report jetstream"),
            (Trouble::Denied("words".to_owned()), "permissions: {"),
            (Trouble::Silent("words".to_owned()), "nats stream report"),
        ] {
            let mut report = Report::default();
            trouble.tell(&mut report, "it", "site-a");
            let text = report.to_string();
            assert!(text.contains(mend) && text.contains("words"), "{text}");
            assert!(!text.contains("stream add") && !report.is_safe(), "{text}");
        }
    }
}
