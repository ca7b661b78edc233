#include "troika/cluster/launch/launch_report.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cluster {

namespace {

std::string name_of(const RankEnd& end) {
  return end.role.empty() ? fmt::format("rank {}", end.rank) : end.role;
}

int64_t failure_time(const RankEnd& end) {
  return end.note && end.note->time_ns < end.ended_ns ? end.note->time_ns : end.ended_ns;
}

bool failed_by_itself(const RankEnd& end) {
  if (end.status.ok() || end.status.saved()) return false;
  return !end.stopped_ns || (end.note && end.note->time_ns < *end.stopped_ns);
}

bool blames_a_peer(const RankEnd& end) {
  return end.status.signal == 0 && end.status.code == static_cast<int>(ErrorKind::peer);
}

std::string show_end(const RankEnd& end) {
  if (end.stopped_ns && !failed_by_itself(end)) {
    return end.had_to_be_killed ? "stopped by the launcher, had to be killed"
                                : "stopped by the launcher";
  }
  std::string text = describe(end.status);
  if (blames_a_peer(end)) text += " (reports the failure of another rank)";
  return text;
}

std::string message_of(const RankEnd& end) {
  // The last line on standard error is unrelated to a SIGKILL.
  if (!end.note && end.status.signal == SIGKILL) {
    return "none: a process that is killed cannot say why; the kernel does it when memory runs out "
           "(dmesg, or memory.events of the cgroup)";
  }
  std::string text = end.note ? end.note->message : end.last_error_line;
  text = trim(text);
  if (text.empty()) return "none, neither reported nor on its standard error";
  std::string shown;
  for (const char c : text) {
    shown += c;
    if (c == '\n') shown += "           ";  // aligned with the first line
  }
  return shown;
}

// Whether the line printed above the report already shows the rank's message. The launcher keeps
// only the beginning of a long line.
bool stands_above(const RankEnd& end) {
  if (!end.is_shown || !end.note || !end.last_error_line.starts_with("error: ")) return false;
  return ("error: " + end.note->message).starts_with(end.last_error_line);
}

// Returns the rank that ended successfully while other ranks still needed it; null if there is
// none. Applies only if all failed ranks report another rank's failure. With several machines
// (`host` is not empty) the rank may be on another one, so it must also be named in the failure's
// message.
const RankEnd* ended_too_early(const std::vector<RankEnd>& ends, const RankEnd& first_failure,
                               const std::string& host) {
  if (!blames_a_peer(first_failure)) return nullptr;
  const auto message = message_of(first_failure);
  const RankEnd* early = nullptr;
  for (const auto& end : ends) {
    const bool is_named = message.find(fmt::format("rank {} ", end.rank)) != std::string::npos;
    if (!end.status.ok() || end.stopped_ns || (!host.empty() && !is_named)) continue;
    if (!early || end.ended_ns < early->ended_ns) early = &end;
  }
  return early;
}

}  // namespace

const RankEnd* first_failure(const std::vector<RankEnd>& ends) {
  const auto order = [](const RankEnd& end) {
    return std::tuple(blames_a_peer(end), failure_time(end), end.rank);
  };
  const RankEnd* first = nullptr;
  for (const auto& end : ends) {
    if (failed_by_itself(end) && (!first || order(end) < order(*first))) first = &end;
  }
  return first;
}

std::optional<int> saved_code(const std::vector<RankEnd>& ends) {
  std::optional<int> code;
  for (const auto& end : ends) {
    if (end.status.ok()) continue;
    if (!end.status.saved()) return std::nullopt;
    code = std::min(code.value_or(end.status.code), end.status.code);
  }
  return code;
}

std::string report(const std::vector<RankEnd>& ends, const RankEnd& first,
                   const std::string& host) {
  const std::string where = host.empty() ? "" : " on " + host;
  const auto* early = ended_too_early(ends, first, host);
  std::string text = early
                         ? fmt::format(
                               "[cluster] {}{} ended with exit code 0 before it had left the run; "
                               "others failed because of it\n",
                               name_of(*early), where)
                         : fmt::format("[cluster] {}{} failed first: {}\n", name_of(first), where,
                                       show_end(first));
  text += fmt::format("  message: {}{}\n", early ? name_of(first) + " says: " : "",
                      !early && stands_above(first) ? "above" : message_of(first));
  text += fmt::format("  log:     {}\n", first.log.string());
  for (const auto& end : ends) {
    if (&end != (early ? early : &first))
      text += fmt::format("  {:<8} {}\n", name_of(end) + ":", show_end(end));
  }
  return text;
}

void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace troika::cluster
