import torch,time,sys
from model import Model
torch.set_num_threads(1)
for L in (4,):
  for T,B in ((64,64),(128,32),(256,16),(512,8)):
    for bf in (0,1):
        m=Model(dict(dim=128,layers=L,heads=4,kv_heads=2,head_dim=64,ff=256,rope_theta=1e4,rotating_pairs=16),437)
        opt=torch.optim.AdamW(m.parameters())
        X=torch.randint(437,(B,T));P=torch.arange(T).expand(B,T)
        for i in range(6):
            if i==2: t=time.time()
            with torch.autocast('cpu',torch.bfloat16,enabled=bool(bf)):
                h,_,_=m(X,P,torch.zeros(B,T)); lg=m.head(h)
            loss=torch.nn.functional.cross_entropy(lg.float().view(-1,437),X.view(-1))
            opt.zero_grad(set_to_none=True);loss.backward();opt.step()
        d=(time.time()-t)/4; print(L,T,B,'bf' if bf else 'fp32','%.0f tok/s'%(B*T/d),flush=True)
