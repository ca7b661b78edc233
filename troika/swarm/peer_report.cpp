#include "troika/swarm/peer_report.h"

#include <cmath>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostVersion = 64;  // bytes

struct ReportBody {
  std::string version;
  int64_t steps = 0;
  double samples = 0;
  std::vector<double> loss;  // one, or none
  int64_t loss_samples = 0;
  uint64_t sent = 0, received = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReportBody, version, steps, samples, loss, loss_samples, sent,
                                   received)

bool is_count(double number) {
  return std::isfinite(number) && number >= 0;
}

}  // namespace

std::string text_of(const PeerReport& report) {
  const bool has_loss = report.loss && std::isfinite(*report.loss);
  return text_of(
      nlohmann::json(ReportBody{report.version, report.steps, report.samples,
                                has_loss ? std::vector{*report.loss} : std::vector<double>(),
                                report.loss_samples, report.sent, report.received}));
}

PeerReport report_from(const std::string& text) {
  auto body = parsed<ReportBody>(text);
  return {.version = std::move(body.version),
          .steps = body.steps,
          .samples = body.samples,
          .loss = body.loss.empty() ? std::nullopt : std::optional(body.loss.front()),
          .loss_samples = body.loss_samples,
          .sent = body.sent,
          .received = body.received};
}

bool is_report(const Record& record) {
  try {
    const auto report = report_from(record.body);
    return report.version.size() <= kMostVersion && report.steps >= 0 && is_count(report.samples) &&
           std::isfinite(report.loss.value_or(0)) && report.loss_samples >= 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace troika::swarm
