#include "troika/comm/codec/codec.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/codec/codecs.h"
#include "troika/comm/codec/memory.h"

namespace troika::comm {

namespace {

template <typename T>
void require_option(bool holds, std::string_view option, T got, std::string_view expected) {
  if (holds) return;
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("gradient codec: {}", option),
               .got = fmt::format("{}", got),
               .expected = std::string(expected)});
}

void check_options(const CodecOptions& options) {
  require_option(options.rank >= 1, "rank", options.rank, "an integer >= 1");
  require_option(options.density > 0 && options.density <= 1, "density", options.density,
                 "a number above 0 and at most 1");
  require_option(options.block >= 1, "block", options.block, "an integer >= 1");
  if (options.error_feedback || options.warm_start) {
    require_option(options.start_step >= 2, "start_step", options.start_step,
                   "an integer >= 2 with error feedback or warm start");
  }
  require_option(options.start_step >= 0, "start_step", options.start_step, "an integer >= 0");
}

}  // namespace

void Codec::load_state(const state::StateDict& state, double) {
  if (!state.empty()) codec::refuse_state(name(), state.front().first);
}

std::unique_ptr<Codec> make_codec(const CodecOptions& options) {
  check_options(options);
  if (options.name == "none") return codec::make_none();
  if (options.name == "fp16") return codec::make_cast(c10::ScalarType::Half);
  if (options.name == "bf16") return codec::make_cast(c10::ScalarType::BFloat16);
  if (options.name == "powersgd") return codec::make_powersgd(options);
  if (options.name == "topk") return codec::make_top_k(options);
  if (options.name == "int8") return codec::make_int8(options);
  if (options.name == "onebit" || options.name == "randomk" || options.name == "dither" ||
      options.name == "natural") {
    throw Error("comm", ErrorKind::usage,
                {.what = "gradient codec of an all-reduce",
                 .got = options.name,
                 .expected = "none, fp16, bf16, powersgd, topk or int8",
                 .hint = "summation servers have it"});
  }
  const std::vector<std::string> names{"none", "fp16", "bf16", "powersgd", "topk", "int8"};
  throw Error("comm", ErrorKind::usage,
              {.what = "unknown gradient codec",
               .got = options.name,
               .hint = fmt::format("did you mean {}?", nearest(options.name, names))});
}

}  // namespace troika::comm
