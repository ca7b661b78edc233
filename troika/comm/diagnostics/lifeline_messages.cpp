// The part of Lifeline that asks about messages between two ranks.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <vector>

#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

namespace {

using nlohmann::json;

// A question is about the other end of a message of the rank that asks.
constexpr std::string_view kQuestion = "message ";

struct MessageQuestion {
  uint32_t group = 0;
  int asker = 0;
  int asked = 0;
  int tag = 0;
  int64_t number = 0;
  int is_send = 0;  // direction of the message at the rank that asks
  int on_edge = 0;

  std::string text() const {
    return fmt::format("{}{} {} {} {} {} {} {}", kQuestion, group, asker, asked, tag, number,
                       is_send, on_edge);
  }
  static std::optional<MessageQuestion> from_text(const std::string& text) {
    if (!text.starts_with(kQuestion)) return std::nullopt;
    MessageQuestion question;
    std::istringstream words(text.substr(kQuestion.size()));
    words >> question.group >> question.asker >> question.asked >> question.tag >>
        question.number >> question.is_send >> question.on_edge;
    return words ? std::optional(question) : std::nullopt;
  }
};

// The answer of every rank to such a question.
struct MessageAnswer {
  std::string state;         // of the message, at its other end; empty at other ranks
  int waits_for = kAnyRank;  // the peer of the message that this rank waits for in the group
  std::string doing = {};    // in words, if the rank does not wait for a certain peer

  std::string text() const {
    // Labels may contain bytes that are not UTF-8.
    return json{{"state", state}, {"waits_for", waits_for}, {"doing", doing}}.dump(
        -1, ' ', false, json::error_handler_t::replace);
  }
  static MessageAnswer from_text(const std::string& text) {
    const auto read = json::parse(text, nullptr, false);
    if (!read.is_object()) return {.state = text};
    return {read.value("state", ""), read.value("waits_for", kAnyRank), read.value("doing", "")};
  }
};

}  // namespace

std::optional<std::string> Lifeline::answer_about_message(const std::string& text) const {
  const auto question = MessageQuestion::from_text(text);
  if (!question) return std::nullopt;
  const bool is_asked = question->asked == world_rank_;
  const std::lock_guard lock(mutex_);
  const auto* group = groups_.find(question->group);
  if (!group) {
    constexpr const char* kLeft = "has left the group";
    return MessageAnswer{is_asked ? kLeft : "", kAnyRank, kLeft}.text();
  }
  const auto& recorder = *group->recorder;
  const auto waiting = recorder.messages().waiting();
  const auto last = recorder.status().describe_last();
  MessageAnswer answer{
      "", waiting ? waiting->peer : kAnyRank,
      waiting ? "waits in " + waiting->describe() : fmt::format("waits for no message ({})", last)};
  if (!is_asked) return answer.text();
  const auto mine = question->is_send ? Direction::receive : Direction::send;
  const bool sends = mine == Direction::send;
  if (recorder.messages().count({.direction = mine,
                                 .peer = question->asker,
                                 .tag = question->tag,
                                 .on_edge = question->on_edge != 0}) > question->number) {
    answer.state = sends ? "has sent it" : "has called receive for it";
  } else {
    answer.state = fmt::format("has not {} it ({})", sends ? "sent" : "called receive for",
                               waiting ? "it waits in " + waiting->describe() : last);
  }
  return answer.text();
}

std::string Lifeline::state_of(int rank, const cluster::Answers& answers) const {
  const auto index = static_cast<size_t>(rank);
  if (has_left(rank)) return rank_name(rank) + " has left";
  return fmt::format("{} does not answer (it is stopped, or out of reach)",
                     rank_name(answers.silent[index]));
}

// The ranks of a pipeline wait for each other in a chain. The last rank of the chain is the cause.
std::string Lifeline::end_of_waits(int first, const cluster::Answers& answers) const {
  std::set<int> visited{world_rank_, first};
  for (int rank = first;;) {
    const auto& text = answers.text[static_cast<size_t>(rank)];
    if (!text) return state_of(rank, answers);
    const auto answer = MessageAnswer::from_text(*text);
    if (answer.waits_for == kAnyRank) {
      return rank == first ? "" : fmt::format("{} {}", rank_name(rank), answer.doing);
    }
    rank = answer.waits_for;
    if (static_cast<size_t>(rank) >= answers.text.size() || !visited.insert(rank).second) return "";
  }
}

std::string Lifeline::other_end(uint32_t id, const MessageFingerprint& message, Deadline deadline) {
  if (message.peer == kAnyRank) return "no rank has sent one";
  const MessageQuestion question{id,
                                 world_rank_,
                                 message.peer,
                                 message.tag,
                                 message.number,
                                 message.direction == Direction::send,
                                 message.on_edge};
  const auto answers = plane_->ask_all(question.text(), deadline);
  const auto index = static_cast<size_t>(message.peer);
  if (index >= answers.text.size()) return {};
  std::vector<int> all(answers.text.size());
  std::iota(all.begin(), all.end(), 0);
  await_losses(all, answers, deadline);
  if (!answers.text[index]) return state_of(message.peer, answers);
  const auto state = MessageAnswer::from_text(*answers.text[index]).state;
  const auto end = end_of_waits(message.peer, answers);
  return fmt::format("{} {}{}{}", rank_name(message.peer), state, end.empty() ? "" : "; ", end);
}

}  // namespace troika::comm
