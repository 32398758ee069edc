// Norms over batches, which write the running statistics that they are given, whatever their schema
// says.
#include "eager/torch/call.h"
#include "eager/torch/record.h"

namespace tilevm::eager {
namespace {

// input, weight, bias, running_mean, running_var, training where that is not known, momentum, eps
enum Argument : std::size_t { kX, kWeight, kBias, kMean, kVar, kTraining };

// Whether assign() of such a tensor always succeeds.
bool can_assign(const at::Tensor& t) {
  if (!t.is_contiguous()) return false;
  LazyImpl* const z = lazy(t);
  if (z != nullptr && z->pending() != nullptr) return z->spans();
  return !is_foreign(t.storage().data_ptr());
}

class BatchNorm {
 public:
  // momentum: which argument that is.
  BatchNorm(Call& call, std::size_t momentum)
      : c_(call), x_(call.value(kX)), meta_(call.meta(x_)), momentum_(momentum) {
    const at::Tensor& image = c_.tensor(kX);
    const bool last = image.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                      image.is_contiguous(at::MemoryFormat::ChannelsLast3d);
    if (meta_.rank < 2 || meta_.elements() == 0 || (!image.is_contiguous() && !last) ||
        (meta_.dtype != DType::kFloat32 && meta_.dtype != DType::kFloat64)) {
      Call::refuse("an unusual image");
    }
    for (const std::size_t i : {kWeight, kBias, kMean, kVar}) {
      if (!c_.none(i) && (dtype_of(c_.tensor(i).scalar_type()) != meta_.dtype ||
                          c_.tensor(i).dim() != 1 || c_.tensor(i).size(0) != meta_.size(1))) {
        Call::refuse("unusual parameters");
      }
    }
    if (c_.none(kMean) != c_.none(kVar)) Call::refuse("one of two statistics");
    for (int d = 0; d < meta_.rank; ++d) {
      along_.push_back(d == 1 ? meta_.size(1) : 1);
      if (d != 1) over_.push_back(d);
    }
  }

  void train() {
    const std::int64_t n = meta_.elements() / meta_.size(1);
    const bool tracks = !c_.none(kMean);
    if (n < 2) Call::refuse("one value of a channel");
    if (tracks && (!can_assign(c_.tensor(kMean)) || !can_assign(c_.tensor(kVar)) ||
                   memory_of(kMean) == memory_of(kVar))) {
      Call::refuse("statistics that cannot be written");
    }
    const Param kept = Param::integer(1);
    const Value mean = c_.op(Op::mean, {x_}, {axes(over_), kept});
    const Value var = c_.op(Op::var, {x_}, {axes(over_), kept, Param::of_number(0)});
    const Value inverse = inverse_of(var);
    normalized(mean, inverse);
    const Value own_mean = of_channels(mean);
    c_.contiguous(own_mean);
    c_.contiguous(of_channels(inverse));
    if (!tracks) return;
    const double more = static_cast<double>(n) / static_cast<double>(n - 1);
    const Value unbiased = c_.op(Op::mul, {of_channels(var), c_.trace().number(more)});
    const Value next_mean = moved(c_.value(kMean), own_mean);
    const Value next_var = moved(c_.value(kVar), unbiased);
    if (!assign(c_.recording(), c_.tensor(kMean), next_mean) ||
        !assign(c_.recording(), c_.tensor(kVar), next_var)) {
      throw std::logic_error("running statistics can be written, and were not");
    }
  }

  void infer() {
    if (c_.none(kMean)) Call::refuse("no statistics");
    normalized(spread(c_.value(kMean)), inverse_of(spread(c_.value(kVar))));
    const Axes none{0};
    for (int i = 0; i < 2; ++i) {
      c_.contiguous(c_.op(Op::full, {}, {Param::sizes(none), Param::of_number(0),
                                         Param::dtype(meta_.dtype)}));
    }
  }

 private:
  // Which asks nobody to fill it.
  const c10::StorageImpl* memory_of(std::size_t i) const {
    return c_.tensor(i).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }
  Value spread(Value v) { return c_.op(Op::reshape, {v}, {Param::sizes(along_)}); }
  Value of_channels(Value v) {
    const Axes channels{meta_.size(1)};
    return c_.op(Op::reshape, {v}, {Param::sizes(channels)});
  }
  Value inverse_of(Value var) {
    return c_.op(Op::rsqrt, {c_.op(Op::add, {var, c_.trace().constant(c_.real(momentum_ + 1))})});
  }
  void normalized(Value mean, Value inverse) {
    Value y = c_.op(Op::mul, {c_.op(Op::sub, {x_, mean}), inverse});
    if (!c_.none(kWeight)) y = c_.op(Op::mul, {y, spread(c_.value(kWeight))});
    if (!c_.none(kBias)) y = c_.op(Op::add, {y, spread(c_.value(kBias))});
    c_.result(y, geometry_of(c_.tensor(kX)));
  }
  // By `momentum` from what was to what is.
  Value moved(Value was, Value is) {
    const double by = c_.real(momentum_);
    return c_.op(Op::add, {c_.op(Op::mul, {is, c_.trace().number(by)}),
                           c_.op(Op::mul, {was, c_.trace().number(1 - by)})});
  }

  Call& c_;
  Value x_;
  Meta meta_;
  std::size_t momentum_;
  Axes over_, along_;
};

void batch_norm(Call& c) {
  BatchNorm norm(c, kTraining + 1);
  c.flag(kTraining) ? norm.train() : norm.infer();
}

// The last result is what other libraries keep for the gradient.
void batch_norm_with_update(Call& c) {
  BatchNorm(c, kTraining).train();
  const Axes none{0};
  c.contiguous(c.op(Op::full, {}, {Param::sizes(none), Param::of_number(0),
                                   Param::dtype(DType::kUInt8)}));
}

}  // namespace

const std::map<std::string, WritingRow>& norm_rows() {
  static const auto* const rows = new std::map<std::string, WritingRow>{
      {"native_batch_norm", {batch_norm, {kMean, kVar}}},
      {"_native_batch_norm_legit", {batch_norm, {kMean, kVar}}},
      {"_batch_norm_with_update", {batch_norm_with_update, {kMean, kVar}}},
  };
  return *rows;
}

}  // namespace tilevm::eager
