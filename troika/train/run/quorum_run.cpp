#include "troika/train/run/quorum_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/checkpoint/resume.h"
#include "troika/cluster/discovery/endpoint.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/nn/precision.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/run/packed_folder.h"

namespace troika::train {

namespace {

constexpr const char* kLighthouseVariable = "TROIKA_LIGHTHOUSE";

void require_supported(const TrainOptions& options, const layout::Plan& plan, int replicas) {
  const auto require = [&](bool holds, const std::string& got, const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("the replicas of strategy {} may be lost", plan.strategy),
                 .got = got,
                 .expected = expected});
  };
  const auto& trainer = options.trainer;
  const auto precision = nn::parse_precision(trainer.precision);
  require(!precision.needs_scaler(), "trainer.precision " + precision.name,
          "one that does not scale the loss");
  require(plan.keeps_replicas_equal() || !precision.needs_masters(),
          "trainer.precision " + precision.name, "32, 64 or bf16-mixed");
  require(trainer.accumulate_grad_batches == 1,
          fmt::format("trainer.accumulate_grad_batches {}", trainer.accumulate_grad_batches), "1");
  require(!trainer.sync_batchnorm, "trainer.sync_batchnorm true", "false");
  require(trainer.accelerator == "cpu" || trainer.accelerator == "auto",
          "trainer.accelerator " + trainer.accelerator, "cpu");
  require(!options.ema.enabled, "ema.enabled true", "false");
  require(trainer.cpu_bind != "cores", "trainer.cpu_bind cores", "auto or none");
  require(options.ddp.broadcast_buffers, "ddp.broadcast_buffers false", "true");
  require(plan.exchange.warmup_steps == 0,
          fmt::format("diloco.warmup_steps {}", plan.exchange.warmup_steps), "0");
  require(plan.compression.codec == "none", "ddp.hook " + plan.compression.codec, "none");
  require(trainer.max_time.empty(), "trainer.max_time " + trainer.max_time,
          "none: replicas end at the same step, by trainer.max_steps or max_epochs");
  const auto& checkpoint = options.checkpoint;
  require(checkpoint.train_time_interval.empty(),
          "checkpoint.train_time_interval " + checkpoint.train_time_interval,
          "none: replicas save at the same steps");
  for (const auto& [name, monitor] :
       {std::pair("checkpoint", checkpoint.monitor),
        std::pair("early_stopping", options.early_stopping.monitor)}) {
    require(!monitor.starts_with("train/"), fmt::format("{}.monitor {}", name, monitor),
            "a metric of validations, which all replicas share");
  }
  require(options.ft_ddp.min_replicas <= replicas,
          fmt::format("ft_ddp.min_replicas {}", options.ft_ddp.min_replicas),
          fmt::format("at most the {} that were launched", replicas));
  const int64_t batch = global_batch(options, replicas);
  require(batch >= replicas, fmt::format("a global batch of {} samples", batch),
          fmt::format("at least one for each of {} replicas", replicas));
}

}  // namespace

bool trains_in_quorum(const TrainOptions& options) {
  try {
    return resolve_plan(options, layout::Cluster()).exchange.method ==
           layout::ExchangeMethod::fault_tolerant;
  } catch (const Error&) {
    return false;  // the check of the plan says more
  }
}

QuorumPlace find_quorum_place(const cluster::Environment& environment,
                              const cluster::Variables& variables) {
  QuorumPlace place{.rank = environment.rank, .replicas = environment.world_size};
  const auto lighthouse = variables(kLighthouseVariable);
  if (lighthouse && !lighthouse->empty()) {
    const auto at = cluster::parse_endpoint(*lighthouse);
    place.lighthouse = net::Address{at.address, at.port};
    // Also a single replica was launched with a secret.
    place.secret = cluster::find_secret(environment.run_id, variables).secret;
  } else if (environment.world_size > 1) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = "strategy ft_ddp has a lighthouse beside its replicas",
         .got = fmt::format("{} replicas without {}", environment.world_size, kLighthouseVariable),
         .expected = "its HOST:PORT",
         .hint = "troika launch --fault-tolerant has one, and sets it"});
  }
  return place;
}

QuorumRun::QuorumRun(const TrainOptions& options, const QuorumPlace& place) : place_(place) {
  const auto plan = resolve_plan(options, layout::Cluster());
  plan.verify();
  require_supported(options, plan, place.replicas);
  const auto& outer = plan.exchange.outer;
  if (outer.is_on) {
    rounds_.steps = outer.interval(plan.exchange.period);
    rounds_.delay = outer.delay;
  }
  net::Address lighthouse{"127.0.0.1", 0};
  if (place.lighthouse) {
    lighthouse = *place.lighthouse;
  } else {
    own_lighthouse_.emplace(place.secret, lighthouse);
    lighthouse.port = own_lighthouse_->port();
  }
  const auto& own = options.ft_ddp;
  member_.emplace(
      quorum::MemberOptions{.rank = place.rank,
                            .lighthouse = lighthouse,
                            .secret = place.secret,
                            .rules = {.replicas = place.replicas,
                                      .min_replicas = static_cast<int>(own.min_replicas),
                                      .global_batch = global_batch(options, place.replicas),
                                      .inner_steps = rounds_.steps,
                                      .join_timeout = own.join_timeout_seconds,
                                      .heartbeat_timeout = own.heartbeat_timeout_seconds,
                                      .timeout = options.comm.timeout_seconds},
                            .connect_timeout = options.comm.join_timeout_seconds});
}

RunFolder QuorumRun::claim(TrainOptions& options) {
  RunFolder claimed;
  options.trainer.devices = options.trainer.num_nodes = -1;
  options.trainer.accelerator = "cpu";
  // Replicas would decide by different timings.
  options.trainer.benchmark = false;
  options.data.global_batch_size = global_batch(options, place_.replicas);
  const auto name = member_->name_run([&] {
    claimed = RunFolder::claim(options, /*goes_on_when_started_again=*/true);
    return options.run.name + '\0' + options.trainer.ckpt_path + '\0' + options.weights.path;
  });
  const auto words = split(name, '\0');
  options.run.name = words.at(0);
  options.trainer.ckpt_path = words.at(1);
  options.weights.path = words.at(2);
  const auto folder = run_folder(options);
  checkpoints_ = folder / "checkpoints";
  if (place_.rank == 0) return claimed;
  options.run.folder = (folder / "replicas").string();
  options.run.name = std::to_string(place_.rank);
  options.trainer.enable_progress_bar = false;
  options.trainer.enable_model_summary = false;
  std::filesystem::create_directories(run_folder(options));
  return claimed;
}

QuorumRun::Joined QuorumRun::join(TrainOptions& options, const std::function<bool()>& stops) {
  const auto admission = member_->join(stops);
  founds_ = admission.founds;
  if (admission.is_finished || admission.is_stopped) {
    leave(/*is_finished=*/false);
    return admission.is_finished ? Joined::finished : Joined::stopped;
  }
  if (founds_) {
    if (admission.founds_again && checkpoint::has_last_of_course(checkpoints_)) {
      options.trainer.ckpt_path = "last";
    }
    return Joined::trains;
  }
  received_.emplace();
  unpack(admission.state, received_->path());
  options.trainer.ckpt_path = received_->path().string();
  log::info("joins the other replicas at step {}", admission.step * rounds_.steps);
  return Joined::trains;
}

std::optional<quorum::Share> QuorumRun::begin_step(
    int64_t step, const std::function<std::filesystem::path(const std::filesystem::path&)>& save,
    const std::function<bool()>& stops) {
  // A run that goes on between sending and outer step has the sum of that round already.
  const int64_t ahead = rounds_.begun < 0 ? rounds_.delay : 0;
  const int64_t round = (step + ahead) / rounds_.steps;
  if (round <= rounds_.begun) return rounds_.share;
  received_.reset();
  const auto state = [&] {
    const TemporaryFolder folder;
    return packed(save(folder.path()));
  };
  const auto share = member_->begin_step(round, state, stops);
  if (!share) return std::nullopt;
  rounds_.begun = round;
  rounds_.share = *share;
  return share;
}

bool QuorumRun::must_save(const std::function<bool()>& stops) {
  saves_ = member_->must_save(stops);
  return saves_;
}

void QuorumRun::leave(bool is_finished) {
  member_->leave(is_finished);
  has_left_ = true;
}

void QuorumRun::abandon() {
  if (std::exchange(has_left_, true)) return;
  member_->abandon();
}

void QuorumRun::require_again() const {
  if (!place_.lighthouse) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a launch with a lighthouse trains once",
               .got = "a second fit()",
               .expected = "one fit()",
               .hint = "start another launch, or call fit() of another Trainer in one process"});
}

bool QuorumRun::writes() {
  if (saves_) return true;
  return member_->counted().members.empty() ? founds_ : member_->is_lowest();
}

std::shared_ptr<QuorumRun> make_quorum_run(const TrainOptions& options,
                                           const cluster::Environment& environment,
                                           const cluster::Variables& variables) {
  const auto is_diloco = [&] {
    const auto exchange = resolve_plan(options, layout::Cluster()).exchange;
    return exchange.method == layout::ExchangeMethod::local_steps && exchange.outer.is_on;
  };
  if (trains_in_quorum(options) || (variables(kLighthouseVariable) && is_diloco())) {
    return std::make_shared<QuorumRun>(options, find_quorum_place(environment, variables));
  }
  require_no_lighthouse("another strategy", variables);
  return nullptr;
}

void require_no_lighthouse(const std::string& what, const cluster::Variables& variables) {
  if (!variables(kLighthouseVariable)) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a fault-tolerant launch of ranks that do not go on without each other",
               .got = what,
               .expected = "troika train with strategy ft_ddp or diloco",
               .hint = "leave out --fault-tolerant"});
}

}  // namespace troika::train
