#include "troika/observe/report/timeline.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::observe::report {

namespace {

using nlohmann::json;

// Names have events of their own, which may come after the events that refer to them.
struct Names {
  std::map<size_t, std::string> ranks;
  std::map<std::pair<size_t, int>, std::string> tracks;
};

Names names_of(const json& events) {
  Names names;
  for (const auto& event : events) {
    if (event.at("ph") != "M") continue;
    const size_t rank = event.at("pid");
    if (event.at("name") == "process_name") names.ranks[rank] = event.at("args").at("name");
    if (event.at("name") == "thread_name") {
      names.tracks[{rank, event.at("tid")}] = event.at("args").at("name");
    }
  }
  return names;
}

TraceRecord record_of(const json& file) {
  const auto& about = file.at("otherData");
  TraceRecord trace;
  trace.clock_errors = about.at("clock_error_microseconds").get<std::vector<double>>();
  const auto& events = file.at("traceEvents");
  const Names names = names_of(events);
  for (size_t r = 0; r < trace.clock_errors.size(); ++r) {
    trace.ranks.push_back({names.ranks.at(r), {}});
  }
  for (const auto& event : events) {
    if (event.at("ph") != "X") continue;
    const size_t rank = event.at("pid");
    const double start = event.at("ts");
    const auto& args = event.at("args");
    trace.ranks.at(rank).spans.push_back({.track = names.tracks.at({rank, event.at("tid")}),
                                          .name = event.at("name"),
                                          .start = start,
                                          .end = start + event.at("dur").get<double>(),
                                          .step = args.value("step", int64_t{-1}),
                                          .bucket = args.value("bucket", int64_t{-1})});
  }
  return trace;
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& got) {
  throw Error("observe", ErrorKind::usage,
              {.what = path.string() + " is damaged",
               .got = got,
               .expected = "a trace that troika train or simulate wrote",
               .hint = "delete it for a report without timeline"});
}

// Names of spans: communication is hidden where it is on the track and beside the computation. On
// other tracks, it blocks the computation.
struct HiddenBy {
  const char* communication;
  const char* track;
  const char* computation;
};

bool is_in_one(const SpanRecord& span, const std::vector<SpanRecord>& others) {
  return std::ranges::any_of(others, [&](const SpanRecord& other) {
    return other.start <= span.start && span.end <= other.end;
  });
}

Overlap overlap(const RankTimeline& rank, const std::vector<HiddenBy>& kinds) {
  std::map<int64_t, std::vector<SpanRecord>> steps;  // those with a backward pass
  for (const SpanRecord& span : rank.spans) {
    if (span.name == "backward") steps[span.step];
  }
  if (steps.size() > 1) steps.erase(steps.begin());
  for (const SpanRecord& span : rank.spans) {
    if (const auto step = steps.find(span.step); step != steps.end()) step->second.push_back(span);
  }
  Overlap result;
  for (const auto& [step, spans] : steps) {
    // They have the number of the step before them.
    std::vector<SpanRecord> validations;
    std::ranges::copy_if(spans, std::back_inserter(validations),
                         [](const SpanRecord& span) { return span.name == "validation"; });
    for (const auto& kind : kinds) {
      for (const SpanRecord& sent : spans) {
        if (sent.name != kind.communication || is_in_one(sent, validations)) continue;
        result.communication += sent.end - sent.start;
        if (sent.track != kind.track) continue;
        for (const SpanRecord& beside : spans) {
          if (beside.name != kind.computation) continue;
          result.hidden +=
              std::max(0.0, std::min(sent.end, beside.end) - std::max(sent.start, beside.start));
        }
      }
    }
  }
  const double milliseconds_a_step = 1e-3 / static_cast<double>(std::max<size_t>(1, steps.size()));
  return {result.communication * milliseconds_a_step, result.hidden * milliseconds_a_step};
}

}  // namespace

TraceRecord read_trace(const std::filesystem::path& path) {
  try {
    return record_of(json::parse(read_file(path)));
  } catch (const json::exception& problem) {
    damaged(path, problem.what());
  } catch (const std::out_of_range&) {
    damaged(path, "an event of a rank or track that is not named");
  }
}

Overlap bucket_overlap(const RankTimeline& rank) {
  return overlap(rank, {{"bucket", "communication", "backward"}});
}

Overlap tensor_overlap(const RankTimeline& rank) {
  return overlap(rank, {{"gradient sum", "tensor axis", "weight gradients"},
                        {"forward sum", "tensor axis", "beside a sum"}});
}

int64_t typical_step(const TraceRecord& trace) {
  std::vector<std::pair<double, int64_t>> steps;
  if (trace.ranks.empty()) return -1;
  for (const SpanRecord& span : trace.ranks.front().spans) {
    if (span.name == "step") steps.emplace_back(span.end - span.start, span.step);
  }
  const auto first = std::ranges::min_element(steps, {}, &std::pair<double, int64_t>::second);
  if (steps.size() > 1) steps.erase(first);
  if (steps.empty()) return -1;
  std::ranges::sort(steps);
  return steps[(steps.size() - 1) / 2].second;
}

}  // namespace troika::observe::report
