// The part of Lifeline that asks about messages between two ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

namespace {

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

}  // namespace

std::optional<std::string> Lifeline::answer_about_message(const std::string& text) const {
  const auto question = MessageQuestion::from_text(text);
  if (!question) return std::nullopt;
  if (question->asked != world_rank_) return "";
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find(question->group);
  if (group == groups_.end()) return "has left the group";
  const auto& recorder = *group->second.recorder;
  const auto mine = question->is_send ? Direction::receive : Direction::send;
  if (recorder.messages().count({.direction = mine,
                                 .peer = question->asker,
                                 .tag = question->tag,
                                 .on_edge = question->on_edge != 0}) > question->number) {
    return mine == Direction::send ? "has sent it" : "has called receive for it";
  }
  const auto elsewhere = recorder.messages().waiting();
  return fmt::format(
      "has not {} it ({})", mine == Direction::send ? "sent" : "called receive for",
      elsewhere ? "it waits in " + elsewhere->describe() : recorder.status().describe_last());
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
  const auto name = rank_name(message.peer);
  if (answers.text[index]) return fmt::format("{} {}", name, *answers.text[index]);
  if (has_left(message.peer)) return name + " has left";
  return fmt::format("{} does not answer (it is stopped, or out of reach)",
                     rank_name(answers.silent[index]));
}

}  // namespace troika::comm
