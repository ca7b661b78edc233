#include "troika/parallel/diloco/diloco.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

constexpr const char* kStep = "step";
constexpr std::string_view kSent = "sent.";

void require(bool holds, const char* what, int64_t got, std::string expected) {
  if (holds) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = std::string(what) + " of DiLoCo",
               .got = std::to_string(got),
               .expected = std::move(expected)});
}

}  // namespace

DiLoCo::DiLoCo(torch::nn::Module& module, std::unique_ptr<ReplicaMean> mean,
               const DiLoCoSchedule& schedule, const OuterOptions& outer, Trace* trace)
    : schedule_(schedule), trace_(trace), outer_(module, outer), mean_(std::move(mean)) {
  const int64_t inner = schedule.inner_steps;
  require(inner >= 1 && inner % outer.fragments == 0, "inner_steps", inner,
          fmt::format("a multiple of {} fragments", outer.fragments));
  require(
      schedule.delay >= 0 && schedule.delay < interval(), "delay", schedule.delay,
      fmt::format("an integer from 0 to {}, below the interval of outer steps", interval() - 1));
}

bool DiLoCo::begin_step(double weight) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a weight of a step of DiLoCo",
               .got = fmt::format("{}", weight),
               .expected = "none: replicas make equally many steps"});
}

int64_t DiLoCo::fragment_after(int64_t steps) const {
  return ((steps + schedule_.delay) / interval() - 1) % outer_.count();
}

void DiLoCo::step_by(const std::function<void()>& update) {
  if (outer_.is_shown()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a step of the outer weights",
                 .got = "no begin_training() after synchronize_replicas()",
                 .expected = "begin_training() before the forward pass"});
  }
  update();
  ++steps_;
  if ((steps_ + schedule_.delay) % interval() == 0) send();
  if (steps_ % interval() == 0) finish();
}

void DiLoCo::send() {
  changes_ = outer_.changes(fragment_after(steps_));
  buffers_ = outer_.buffers();
  mean_->start(changes_, buffers_);
}

void DiLoCo::finish() {
  {
    const TraceSpan span(trace_, "communication", "outer step");
    mean_->wait();
  }
  outer_.step((steps_ / interval() - 1) % outer_.count(), changes_, buffers_);
  changes_.clear();
  buffers_.clear();
}

void DiLoCo::fetch_states() {
  mean_->wait();
  outer_.show();
}

std::vector<std::pair<std::string, double>> DiLoCo::take_statistics() {
  mean_->wait();
  return mean_->statistics();
}

optim::NamedTensors DiLoCo::state() const {
  mean_->wait();
  optim::NamedTensors result{{kStep, at::scalar_tensor(steps_, at::kLong)}};
  for (auto& entry : outer_.state()) result.push_back(std::move(entry));
  if (!is_sent()) return result;
  const auto names = outer_.change_names(fragment_after(steps_));
  for (size_t i = 0; i < names.size(); ++i) {
    result.emplace_back(std::string(kSent) + names[i], changes_[i]);
  }
  const auto buffers = outer_.buffer_names();
  for (size_t i = 0; i < buffers.size(); ++i) {
    result.emplace_back(std::string(kSent) + buffers[i], buffers_[i]);
  }
  return result;
}

void DiLoCo::load_state(const optim::NamedTensors& state) {
  std::map<std::string, at::Tensor> rest;
  for (const auto& [name, tensor] : state) rest.emplace(name, tensor);
  const auto take = [&](const std::string& name) {
    const auto found = rest.extract(name);
    if (found.empty()) refuse_state("no " + name);
    return found.mapped();
  };
  const auto steps = take(kStep).item<int64_t>();
  if (steps < 0) refuse_state(kStep);
  const int64_t since = steps % interval();
  std::vector<at::Tensor> changes, buffers;
  if (since + schedule_.delay >= interval()) {
    const auto like = [&](const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& now) {
      std::vector<at::Tensor> result;
      for (size_t i = 0; i < names.size(); ++i) {
        const auto name = std::string(kSent) + names[i];
        const auto tensor = take(name);
        if (tensor.sizes() != now[i].sizes()) refuse_state(name);
        result.push_back(at::empty_like(now[i]).copy_(tensor));
      }
      return result;
    };
    const auto fragment = fragment_after(steps);
    changes = like(outer_.change_names(fragment), outer_.changes(fragment));
    buffers = like(outer_.buffer_names(), outer_.buffers());
  }
  const auto problem = outer_.load_state(rest);
  if (!problem.empty()) refuse_state(problem);
  if (!rest.empty()) refuse_state(rest.begin()->first);
  steps_ = steps;
  changes_ = std::move(changes);
  buffers_ = std::move(buffers);
}

}  // namespace troika::parallel
