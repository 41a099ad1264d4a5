"""Value functions of the emulated device: what each PTX instruction family computes, on NumPy arrays.

A value is one array over lanes, or a 0-d value where it is the same in every lane; one call may mix both forms.
Predicates are ``bool_``; integers ``uintN``/``intN``; f32 and f64 ``float32``/``float64``; f16 and bf16 scalars their
``uint16`` bits; packed pairs ``uint32`` with element 0 in the low half. The dtype of an array chooses between signed
and unsigned forms. No function here knows lanes' blocks, the generator or the scheduler.

The caller holds ``np.errstate(all="ignore")``: overflow and invalid operations are defined results in PTX.
Source of every meaning: PTX ISA manual, section "Instructions".
"""
