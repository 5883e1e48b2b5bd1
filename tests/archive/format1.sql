-- An archive of format 1, as the version before `Origin.kind` wrote it.
BEGIN TRANSACTION;
CREATE TABLE samples (
    run TEXT, step INTEGER, position INTEGER, policy TEXT NOT NULL, prompt TEXT NOT NULL, reward REAL,
    verdict INTEGER NOT NULL REFERENCES verdicts, PRIMARY KEY (run, step, position)) WITHOUT ROWID;
INSERT INTO "samples" VALUES('demo',1,0,'data/policy','<|cpu|>',1.1,1);
INSERT INTO "samples" VALUES('demo',1,1,'data/policy','<|cpu|>',-0.8,2);
INSERT INTO "samples" VALUES('demo',2,0,'data/policy','<|cpu|>',1.2,1);
INSERT INTO "samples" VALUES('eval 64_128_256_tn_f32',0,0,'','',NULL,4);
INSERT INTO "samples" VALUES('search cpu 64_128_256_tn_f32 0123456789abcdef 8b48a855acf6857e',3,4,'search','{"family":"tiled","knobs":{"tile_m":64},"seconds":2.5}',NULL,5);
INSERT INTO "samples" VALUES('sft',0,0,'sft/policy','<|cpu|>',NULL,3);
CREATE TABLE sources (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "sources" VALUES('4e41124ab84be9aa2f35f1f2f3f64f96b4e593902c11be6f61924229e900832c','// own
int hgemm() { return 0; }
');
INSERT INTO "sources" VALUES('540d5f06aed998acac20676c80084b0659002459283ae0841c188f17efcff81f','// sampled
int hgemm() { return 0; }
');
INSERT INTO "sources" VALUES('8736a1d3678fdc99f2a36a8adbbc66d242b8df1e847c94955cf793bfb823b2a6','// broken
int hgemm() { return 0; }
');
INSERT INTO "sources" VALUES('ad8304e5d67d04e886ae1f5201375d86687ae7a5d1024c3b4548a1381df7581f','// searched
int hgemm() { return 0; }
');
INSERT INTO "sources" VALUES('bcd06124674ded0e1e9cd985820a4930283a97519ab88e925545e83fa84db48b','// checked
int hgemm() { return 0; }
');
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, source TEXT NOT NULL REFERENCES sources,
    problem TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL, status TEXT NOT NULL,
    speedup REAL, low REAL, body TEXT NOT NULL);
INSERT INTO "verdicts" VALUES(1,'4cbaba58de4c5ada1ef9e7080e6de24cf0c9cb82169c9e98ead71e70b84213fe','4e41124ab84be9aa2f35f1f2f3f64f96b4e593902c11be6f61924229e900832c','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',1.5,1.48499999999999987565e+00,'{"key":"8a8ae520cf488cb8c6861c3d721dfa9a46e3521facce2c4e160ab5cba53597d3","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"host","candidate_us":10.0,"baseline_us":15.0,"speedup":1.5,"low":1.4849999999999999,"high":1.5150000000000001,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"host","candidate_us":10.0,"baseline_us":30.0,"speedup":3.0,"low":2.9699999999999998,"high":3.0300000000000002,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false}');
INSERT INTO "verdicts" VALUES(2,'f08247f2b1b037ffb60e885c8b54329c45ce345520e46fb90f6b21983a4d6134','8736a1d3678fdc99f2a36a8adbbc66d242b8df1e847c94955cf793bfb823b2a6','64_128_256_tn_f32','cpu','8b48a855acf6857e','compile_error',NULL,NULL,'{"key":"38428bbfdcb765854770cf9bc5ba879ceddf384ebaa7648ba415457cbfff267f","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"compile_error","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[],"log":"","seconds":{},"cached":false}');
INSERT INTO "verdicts" VALUES(3,'83564e91bbb4fd643d1be0a44ff706ef22659ef53505294f413128f74d18c198','bcd06124674ded0e1e9cd985820a4930283a97519ab88e925545e83fa84db48b','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',1.0,0.99,'{"key":"42588713f4f9f7eb98552b26245b3d80fc8313ae9f347594ef58f837b398d992","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"host","candidate_us":10.0,"baseline_us":10.0,"speedup":1.0,"low":0.99,"high":1.01,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"host","candidate_us":10.0,"baseline_us":20.0,"speedup":2.0,"low":1.98,"high":2.02,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false}');
INSERT INTO "verdicts" VALUES(4,'e167be9d9d8438a8e32a01c2b32e035c21f7a5f6e8edf09cc74fb5f2e051bdc6','540d5f06aed998acac20676c80084b0659002459283ae0841c188f17efcff81f','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',1.25,1.2375,'{"key":"d2810ae1d2353699099f24c652c6ea6fb8e658ed12d06255afd918900015fdae","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"host","candidate_us":10.0,"baseline_us":12.5,"speedup":1.25,"low":1.2375,"high":1.2625,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"host","candidate_us":10.0,"baseline_us":25.0,"speedup":2.5,"low":2.475,"high":2.525,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false}');
INSERT INTO "verdicts" VALUES(5,'c1229112742efc99b293a622e329073641021dced2c7699d6c7eefc13af09c8f','ad8304e5d67d04e886ae1f5201375d86687ae7a5d1024c3b4548a1381df7581f','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',2.0,1.98,'{"key":"528926d29790776c2bc3acd23b5589e030a15881d01fb4f23fdd6db579020da1","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"host","candidate_us":10.0,"baseline_us":20.0,"speedup":2.0,"low":1.98,"high":2.02,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"host","candidate_us":10.0,"baseline_us":40.0,"speedup":4.0,"low":3.96,"high":4.04,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false}');
CREATE INDEX by_problem ON verdicts (problem, target, fingerprint, source, id);
CREATE VIEW latest AS SELECT verdicts.*, text FROM verdicts JOIN sources ON hash = source WHERE id = (
    SELECT MAX(id) FROM verdicts AS other
    WHERE other.problem = verdicts.problem AND other.target = verdicts.target
      AND other.fingerprint = verdicts.fingerprint AND other.source = verdicts.source);
COMMIT;
PRAGMA user_version = 1;
PRAGMA application_id = 1129661490;
