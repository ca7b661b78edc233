// The two outputs of one rank: written to its log, and forwarded if requested.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "troika/base/file.h"
#include "troika/cluster/ranks/output.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

class RankOutput {
 public:
  enum class PassOn { nothing, bytes, lines };  // lines: each prefixed with "[NAME] "

  struct Stream {
    net::Descriptor pipe;  // closed at its end
    Outlet* outlet;        // null: not forwarded
    LineCutter lines;
    bool is_error;

    // Whether to read now. False while the reader of the launcher's own output is slow.
    bool wanted() const { return pipe && !(outlet && outlet->full()); }
  };

  enum class Log { fresh, goes_on };  // fresh: truncates an existing log

  // Throws Error if the log cannot be opened.
  RankOutput(std::string name, std::filesystem::path path, Log log, PassOn pass_on, Outlet& out,
             Outlet& err);
  void attach(net::Descriptor out, net::Descriptor err);

  std::array<Stream, 2>& streams() { return streams_; }
  void read(Stream& stream);
  bool open() const { return streams_[0].pipe || streams_[1].pipe; }

  const std::filesystem::path& log() const { return log_.path(); }
  // Whether standard error is forwarded unchanged.
  bool is_shown() const { return pass_on_ == PassOn::bytes; }
  // The last non-empty line on standard error, without surrounding blanks.
  const std::string& last_error_line() const { return last_error_line_; }

 private:
  void write_log(std::string_view bytes);

  std::string name_;
  File log_;
  bool log_failed_ = false;
  PassOn pass_on_;
  std::array<Stream, 2> streams_;
  std::string last_error_line_;
};

}  // namespace troika::cluster
