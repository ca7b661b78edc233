#include "troika/cluster/ranks/rank_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"

namespace troika::cluster {

namespace {
constexpr size_t kLongestErrorLine = 2000;
}

RankOutput::RankOutput(std::string name, std::filesystem::path path, Log log, PassOn pass_on,
                       Outlet& out, Outlet& err)
    : name_(std::move(name)),
      log_(std::move(path), O_WRONLY | O_CREAT | O_APPEND | (log == Log::fresh ? O_TRUNC : 0)),
      pass_on_(pass_on),
      streams_{Stream{{}, pass_on == PassOn::nothing ? nullptr : &out, {}, false},
               Stream{{}, pass_on == PassOn::nothing ? nullptr : &err, {}, true}} {}

void RankOutput::attach(net::Descriptor out, net::Descriptor err) {
  streams_[0].pipe = std::move(out);
  streams_[1].pipe = std::move(err);
}

void RankOutput::read(Stream& stream) {
  std::array<char, 1 << 16> chunk;
  const ssize_t got = ::read(stream.pipe.get(), chunk.data(), chunk.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const std::string_view bytes(chunk.data(), got > 0 ? static_cast<size_t>(got) : 0);
  if (pass_on_ == PassOn::bytes) stream.outlet->add(bytes);

  std::string whole, prefixed;
  const auto take = [&](std::string_view line) {
    whole += line;
    if (pass_on_ == PassOn::lines) {
      prefixed += fmt::format("[{}] {}{}", name_, line, line.ends_with('\n') ? "" : "\n");
    }
    if (stream.is_error && !trim(line).empty()) {
      last_error_line_ = trim(line).substr(0, kLongestErrorLine);
    }
  };
  stream.lines.feed(bytes, take);
  if (got <= 0) {
    stream.lines.finish(take);
    stream.pipe.reset();
  }
  if (pass_on_ == PassOn::lines) stream.outlet->add(prefixed);
  write_log(whole);
}

void RankOutput::write_log(std::string_view bytes) {
  try {
    log_.write(bytes);
  } catch (const Error& error) {
    // A full disk must not end the training. Warns only once.
    if (!std::exchange(log_failed_, true)) log::warn("[cluster] {}", error.what());
  }
}

}  // namespace troika::cluster
